// Memory and streams. Device memory is host memory at addresses that count up, as in the stand-in libcuda.
#include "standin_hip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_ADDRESS 0x7e9800000000ull
#define PAGE_BYTES 4096

struct block { uintptr_t at; size_t size; bool host; };
static struct block *blocks;
static size_t block_count, block_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool find(uintptr_t at, struct block *out, bool forget)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < block_count && !found; i++) {
        found = forget ? at == blocks[i].at : at - blocks[i].at < blocks[i].size;
        if (found) {
            *out = blocks[i];
            if (forget)
                blocks[i] = blocks[--block_count];
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static hipError_t allocate(void **out, size_t size, bool host)
{
    static _Atomic(uintptr_t) next = FIRST_ADDRESS;
    if (!hip_ready() || !out)
        return hip_result(out ? hipErrorNoDevice : hipErrorInvalidValue);
    *out = NULL;
    if (!size)
        return hipSuccess;
    uintptr_t at = atomic_fetch_add(&next, (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (size > (size_t)standin_number("memory_bytes", 0)
        || mmap((void *)at, size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return hip_result(hipErrorOutOfMemory);
    *out = (void *)at;
    pthread_mutex_lock(&lock);
    blocks = standin_grow(blocks, block_count, &block_room, sizeof *blocks);
    blocks[block_count++] = (struct block){at, size, host};
    pthread_mutex_unlock(&lock);
    return hipSuccess;
}

hipError_t hipMalloc(void **out, size_t size)
{
    return allocate(out, size, false);
}

hipError_t hipHostMalloc(void **out, size_t size, unsigned int flags)
{
    (void)flags;
    return allocate(out, size, true);
}

static hipError_t release(void *at)
{
    struct block block;
    if (at && !find((uintptr_t)at, &block, true))
        return hip_result(hipErrorInvalidValue);
    if (at)
        munmap(at, block.size);
    return hipSuccess;
}

hipError_t hipFree(void *at)
{
    return release(at);
}

hipError_t hipHostFree(void *at)
{
    return release(at);
}

static bool holds(const void *at, size_t size)
{
    struct block block;
    return find((uintptr_t)at, &block, false) && size <= block.size - ((uintptr_t)at - block.at);
}

static hipError_t copy(void *to, const void *from, size_t size, bool to_device, bool from_device)
{
    if ((to_device && !holds(to, size)) || (from_device && !holds(from, size)))
        return hip_result(hipErrorInvalidValue);
    memmove(to, from, size);
    return hipSuccess;
}

hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void *from, size_t size)
{
    return copy(to, from, size, true, false);
}

hipError_t hipMemcpyDtoH(void *to, hipDeviceptr_t from, size_t size)
{
    return copy(to, from, size, false, true);
}

hipError_t hipMemcpy(void *to, const void *from, size_t size, hipMemcpyKind kind)
{
    return copy(to, from, size, kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice,
                kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice);
}

hipError_t hipMemcpyAsync(void *to, const void *from, size_t size, hipMemcpyKind kind, hipStream_t where)
{
    const struct stream *stream;
    hipError_t result = stream_of(where, &stream);
    return result == hipSuccess ? hipMemcpy(to, from, size, kind) : hip_result(result);
}

hipError_t hipMemset(void *at, int value, size_t size)
{
    if (!holds(at, size))
        return hip_result(hipErrorInvalidValue);
    memset(at, value, size);
    return hipSuccess;
}

hipError_t hipPointerGetAttribute(void *out, hipPointer_attribute attribute, hipDeviceptr_t at)
{
    struct block block;
    if (!find((uintptr_t)at, &block, false))
        return hip_result(hipErrorInvalidValue);
    switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER: *(hipDeviceptr_t *)out = at; return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(hipDeviceptr_t *)out = (hipDeviceptr_t)block.at; return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = block.size; return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(hipMemoryType *)out = block.host ? hipMemoryTypeHost : hipMemoryTypeDevice;
        return hipSuccess;
    default: break;
    }
    char call[64];
    snprintf(call, sizeof call, "hipPointerGetAttribute(%d)", attribute);
    return hip_result((hipError_t)standin_unknown(call));
}

// --- streams --------------------------------------------------------------------------------------

hipError_t stream_of(hipStream_t handle, const struct stream **out)
{
    static const struct stream standard;
    *out = handle ? (const struct stream *)handle : &standard;
    return !handle || standin_is(handle, TAG_STREAM) ? hipSuccess : hipErrorContextIsDestroyed;
}

hipError_t hipStreamCreateWithPriority(hipStream_t *out, unsigned int flags, int priority)
{
    static atomic_uint next = 1;
    if (!hip_ready() || !out)
        return hip_result(out ? hipErrorNoDevice : hipErrorInvalidValue);
    int least = standin_needed("least_priority"), greatest = standin_needed("greatest_priority");
    struct stream *stream = standin_new(sizeof *stream, TAG_STREAM);
    stream->id = atomic_fetch_add(&next, 1);
    stream->flags = flags;
    stream->priority = priority < greatest ? greatest : priority > least ? least : priority;
    standin_record("{\"stream\": {\"id\": %u, \"asked\": %d, \"priority\": %d, \"flags\": %u}}", stream->id, priority,
                   stream->priority, flags);
    *out = (hipStream_t)stream;
    return hipSuccess;
}

hipError_t hipStreamCreateWithFlags(hipStream_t *out, unsigned int flags)
{
    return hipStreamCreateWithPriority(out, flags, 0);
}

hipError_t hipStreamCreate(hipStream_t *out)
{
    return hipStreamCreateWithPriority(out, 0, 0);
}

hipError_t hipStreamGetPriority(hipStream_t handle, int *priority)
{
    const struct stream *stream;
    hipError_t result = stream_of(handle, &stream);
    if (result == hipSuccess)
        *priority = stream->priority;
    return hip_result(result);
}

hipError_t hipStreamSynchronize(hipStream_t handle)
{
    const struct stream *stream;
    return hip_result(stream_of(handle, &stream));
}

hipError_t hipStreamDestroy(hipStream_t handle)
{
    if (!standin_is(handle, TAG_STREAM))
        return hip_result(hipErrorInvalidHandle);
    standin_end(handle);
    return hipSuccess;
}
