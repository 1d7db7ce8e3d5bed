// Streams and events. Work is done the moment it is asked for, so a stream is never busy, except in resident.c.
#include "standin.h"

#include <string.h>
#include <time.h>

static atomic_uint next_stream = 1;
static _Thread_local struct stream *own;  // this thread's default stream, in the context it last used

struct stream *stream_new(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = standin_new(sizeof *stream, TAG_STREAM);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    return stream;
}

static struct stream *numbered(struct stream *stream)
{
    stream->id = atomic_fetch_add(&next_stream, 1);
    return stream;
}

CUresult stream_of(CUstream handle, bool per_thread, struct stream **out)
{
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        *out = (struct stream *)handle;
        return standin_is(handle, TAG_STREAM) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    NEED_CONTEXT(context);
    if (handle == CU_STREAM_LEGACY || (!handle && !per_thread)) {
        *out = context->legacy;
        return CUDA_SUCCESS;
    }
    if (!own || own->context != context)
        own = numbered(stream_new(context, CU_STREAM_DEFAULT, 0));
    *out = own;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
    NEED_CONTEXT(context);
    if (!out || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    // Out of range is no error: the nearest priority is taken. A lower number is the higher priority.
    const struct device *device = standin_device();
    int given = priority < device->greatest_priority ? device->greatest_priority
                : priority > device->least_priority  ? device->least_priority
                                                     : priority;
    struct stream *stream = numbered(stream_new(context, flags, given));
    standin_record("{\"stream\": {\"id\": %u, \"asked\": %d, \"priority\": %d, \"flags\": %u}}", stream->id, priority,
                   given, flags);
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    NEED_READY();
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD || !standin_is(handle, TAG_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    standin_end(handle);
    return CUDA_SUCCESS;
}

// Each call exists twice: for the legacy and for the per-thread meaning of the null stream.
#define BOTH(name, types, ...) \
    CUresult name types { return name##_on(__VA_ARGS__, false); } \
    CUresult name##_ptsz types { return name##_on(__VA_ARGS__, true); }

#define WITH_STREAM(stream, handle) \
    struct stream *stream; \
    do { \
        NEED_READY(); \
        CUresult found = stream_of(handle, per_thread, &stream); \
        if (found != CUDA_SUCCESS) \
            return found; \
    } while (0)

static CUresult cuStreamGetPriority_on(CUstream handle, int *priority, bool per_thread)
{
    WITH_STREAM(stream, handle);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetPriority, (CUstream handle, int *priority), handle, priority)

static CUresult cuStreamGetFlags_on(CUstream handle, unsigned int *flags, bool per_thread)
{
    WITH_STREAM(stream, handle);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetFlags, (CUstream handle, unsigned int *flags), handle, flags)

static CUresult cuStreamGetId_on(CUstream handle, unsigned long long *id, bool per_thread)
{
    WITH_STREAM(stream, handle);
    *id = stream->id;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetId, (CUstream handle, unsigned long long *id), handle, id)

static CUresult cuStreamGetDevice_on(CUstream handle, CUdevice *device, bool per_thread)
{
    WITH_STREAM(stream, handle);
    *device = stream->context->device;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetDevice, (CUstream handle, CUdevice *device), handle, device)

static CUresult cuStreamGetCtx_on(CUstream handle, CUcontext *context, bool per_thread)
{
    WITH_STREAM(stream, handle);
    *context = (CUcontext)stream->context;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetCtx, (CUstream handle, CUcontext *context), handle, context)

static CUresult cuStreamGetCtx_v2_on(CUstream handle, CUcontext *context, CUgreenCtx *green, bool per_thread)
{
    WITH_STREAM(stream, handle);
    *context = (CUcontext)stream->context;
    if (green)
        *green = NULL;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetCtx_v2, (CUstream handle, CUcontext *context, CUgreenCtx *green), handle, context, green)

static CUresult cuStreamSynchronize_on(CUstream handle, bool per_thread)
{
    WITH_STREAM(stream, handle);
    CUresult result = capture_touch(stream);
    return result == CUDA_SUCCESS ? resident_synchronize() : result;
}
BOTH(cuStreamSynchronize, (CUstream handle), handle)

static CUresult cuStreamQuery_on(CUstream handle, bool per_thread)
{
    WITH_STREAM(stream, handle);
    return capture_touch(stream);
}
BOTH(cuStreamQuery, (CUstream handle), handle)

static CUresult cuLaunchHostFunc_on(CUstream handle, CUhostFn function, void *data, bool per_thread)
{
    WITH_STREAM(stream, handle);
    if (atomic_load(&stream->capture))
        return capture_host(stream, function, data);
    function(data);
    return CUDA_SUCCESS;
}
BOTH(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *data), handle, function, data)

// --- events ---------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = standin_new(sizeof *event, TAG_EVENT);
    event->context = context;
    event->flags = flags;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    standin_end(handle);
    return CUDA_SUCCESS;
}

static CUresult event_done(CUevent handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    return ((struct event *)handle)->capture ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle)
{
    return event_done(handle);
}

CUresult cuEventSynchronize(CUevent handle)
{
    CUresult result = event_done(handle);
    return result == CUDA_SUCCESS ? resident_synchronize() : result;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
    CUresult result = event_done(from);
    if (result != CUDA_SUCCESS || (result = event_done(to)) != CUDA_SUCCESS)
        return result;
    const struct event *first = (const struct event *)from, *last = (const struct event *)to;
    if ((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING || !first->recorded_ns || !last->recorded_ns)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)last->recorded_ns - (double)first->recorded_ns) * 1e-6f;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
    return cuEventElapsedTime_v2(milliseconds, from, to);
}
