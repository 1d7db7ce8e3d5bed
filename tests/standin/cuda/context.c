// Contexts: one primary per device, others on request, and the stack of current ones per thread.
#include "standin.h"

#define DEEPEST 64

static struct context *primaries[16];
static _Thread_local struct context *stack[DEEPEST];
static _Thread_local int depth;
static atomic_ullong next_id = 1;

static struct context *context_new(CUdevice device, unsigned flags)
{
    struct context *context = standin_new(sizeof *context, TAG_CONTEXT);
    context->device = device;
    context->flags = flags;
    context->id = atomic_fetch_add(&next_id, 1);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
    context->legacy->id = 0;
    return context;
}

static bool is_device(CUdevice device)
{
    return device >= 0 && device < standin_device()->count && device < 16;
}

struct context *standin_primary(CUdevice device)
{
    pthread_mutex_lock(&standin_lock);
    if (!primaries[device]) {
        primaries[device] = context_new(device, 0);
        primaries[device]->primary = true;
    }
    pthread_mutex_unlock(&standin_lock);
    return primaries[device];
}

struct context *standin_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUresult standin_no_context(void)
{
    return standin_ready() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
}

// --- the primary context --------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    NEED_READY();
    if (!out || !is_device(device))
        return out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    struct context *context = standin_primary(device);
    pthread_mutex_lock(&standin_lock);
    context->retained++;
    pthread_mutex_unlock(&standin_lock);
    *out = (CUcontext)context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    NEED_READY();
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *context = standin_primary(device);
    pthread_mutex_lock(&standin_lock);
    bool held = context->retained > 0;
    context->retained -= held;
    pthread_mutex_unlock(&standin_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    NEED_READY();
    if (!is_device(device) || !flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    struct context *context = standin_primary(device);
    *flags = context->flags;
    *active = context->retained > 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    NEED_READY();
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    standin_primary(device)->flags = flags;
    return CUDA_SUCCESS;
}

// --- others ---------------------------------------------------------------------------------------

CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *parameters, unsigned int flags, CUdevice device)
{
    NEED_READY();
    if (!out || !is_device(device))
        return out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    if (parameters)
        return standin_unknown("cuCtxCreate_v4(parameters)");
    *out = (CUcontext)context_new(device, flags);
    return cuCtxPushCurrent_v2(*out);
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
    return cuCtxCreate_v4(out, NULL, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
    NEED_READY();
    struct context *context = (struct context *)handle;
    if (!standin_is(context, TAG_CONTEXT) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (standin_current() == context)
        depth--;
    standin_end(context);
    return CUDA_SUCCESS;
}

// --- the current one ------------------------------------------------------------------------------

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_CONTEXT) || depth == DEEPEST)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = (struct context *)handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    NEED_CONTEXT(context);
    depth--;
    if (out)
        *out = (CUcontext)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
    NEED_READY();
    if (handle && !standin_is(handle, TAG_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth)
        depth--;
    if (handle)
        stack[depth++] = (struct context *)handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
    NEED_READY();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUcontext)standin_current();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *out)
{
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = context->device;
    return CUDA_SUCCESS;
}

static CUresult given(CUcontext handle, struct context **out)
{
    NEED_READY();
    *out = handle ? (struct context *)handle : standin_current();
    return standin_is(*out, TAG_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle)
{
    struct context *context;
    CUresult result = given(handle, &context);
    if (result == CUDA_SUCCESS)
        *out = context->device;
    return result;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct context *context;
    CUresult result = given(handle, &context);
    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    NEED_CONTEXT(context);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    NEED_CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
    struct context *context;
    CUresult result = given(handle, &context);
    if (result == CUDA_SUCCESS)
        *version = 3020;
    return result;
}

CUresult cuCtxSynchronize(void)
{
    NEED_CONTEXT(context);
    if (atomic_load(&standin_captures))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return resident_synchronize();
}

CUresult cuCtxSynchronize_v2(CUcontext handle)
{
    struct context *context;
    CUresult result = given(handle, &context);
    if (result == CUDA_SUCCESS && atomic_load(&standin_captures))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result == CUDA_SUCCESS ? resident_synchronize() : result;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    NEED_CONTEXT(context);
    if (!value || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    NEED_CONTEXT(context);
    if (limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    NEED_CONTEXT(context);
    *config = context->cache;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    NEED_CONTEXT(context);
    context->cache = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    NEED_CONTEXT(context);
    if (least)
        *least = standin_device()->least_priority;
    if (greatest)
        *greatest = standin_device()->greatest_priority;
    return CUDA_SUCCESS;
}
