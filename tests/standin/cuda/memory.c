// Device memory is host memory that this library hands out and remembers, so that a wild pointer is seen.
// Addresses count up from a fixed one and are never used twice: two runs of a program pass equal arguments to
// its kernels, and memory that was freed faults.
#include "standin.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_ADDRESS 0x7e9000000000ull  // where sanitizers too allow a program's memory
#define PAGE_BYTES 4096

struct block {
    uintptr_t at;
    size_t size;
    CUmemorytype kind;
    struct context *context;
};

static struct block *blocks;  // in order of address
static size_t block_count, block_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The first block that begins after `at`.
static size_t after(uintptr_t at)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool find(uintptr_t at, size_t size, struct block *out)
{
    pthread_mutex_lock(&lock);
    size_t next = after(at);
    bool found = next && at - blocks[next - 1].at < blocks[next - 1].size
                 && size <= blocks[next - 1].size - (at - blocks[next - 1].at);
    if (found && out)
        *out = blocks[next - 1];
    pthread_mutex_unlock(&lock);
    return found;
}

bool memory_holds(CUdeviceptr at, size_t size)
{
    return !size || find(at, size, NULL);
}

static void remember(struct block block)
{
    pthread_mutex_lock(&lock);
    blocks = standin_grow(blocks, block_count, &block_room, sizeof *blocks);
    size_t next = after(block.at);
    memmove(blocks + next + 1, blocks + next, (block_count - next) * sizeof *blocks);
    blocks[next] = block;
    block_count++;
    pthread_mutex_unlock(&lock);
}

static CUresult release(uintptr_t at, CUmemorytype kind)
{
    pthread_mutex_lock(&lock);
    size_t next = after(at);
    bool found = next && blocks[next - 1].at == at && blocks[next - 1].kind == kind;
    size_t size = found ? blocks[next - 1].size : 0;
    if (found) {
        if (kind == CU_MEMORYTYPE_DEVICE)
            atomic_fetch_sub(&blocks[next - 1].context->memory_used, blocks[next - 1].size);
        memmove(blocks + next - 1, blocks + next, (block_count - next) * sizeof *blocks);
        block_count--;
    }
    pthread_mutex_unlock(&lock);
    if (found)
        munmap((void *)at, size);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult allocate(void **out, size_t size, CUmemorytype kind)
{
    NEED_CONTEXT(context);
    if (!out || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (kind == CU_MEMORYTYPE_DEVICE) {
        size_t used = atomic_fetch_add(&context->memory_used, size);
        if (used + size > standin_device()->memory_bytes) {
            atomic_fetch_sub(&context->memory_used, size);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    static _Atomic(uintptr_t) next = FIRST_ADDRESS;
    uintptr_t at = atomic_fetch_add(&next, (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    *out = mmap((void *)at, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (*out == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    remember((struct block){(uintptr_t)*out, size, kind, context});
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    return allocate((void **)out, size, CU_MEMORYTYPE_DEVICE);
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
    NEED_READY();
    return at ? release(at, CU_MEMORYTYPE_DEVICE) : CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    return allocate(out, size, CU_MEMORYTYPE_HOST);
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
    (void)flags;
    return allocate(out, size, CU_MEMORYTYPE_HOST);
}

CUresult cuMemFreeHost(void *at)
{
    NEED_READY();
    return release((uintptr_t)at, CU_MEMORYTYPE_HOST);
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    NEED_CONTEXT(context);
    *total = standin_device()->memory_bytes;
    *available = *total - atomic_load(&context->memory_used);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
    NEED_READY();
    struct block block;
    if (!find(at, 1, &block))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block.at;
    if (size)
        *size = block.size;
    return CUDA_SUCCESS;
}

// --- what a pointer is ----------------------------------------------------------------------------

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr at)
{
    NEED_READY();
    struct block block;
    if (!out || !find(at, 1, &block))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = (CUcontext)block.context; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(CUmemorytype *)out = block.kind; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = at; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)out = block.kind == CU_MEMORYTYPE_HOST ? (void *)at : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = block.context->device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = block.at; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = block.size; return CUDA_SUCCESS;
    default: break;
    }
    char call[64];
    snprintf(call, sizeof call, "cuPointerGetAttribute(%d)", attribute);
    return standin_unknown(call);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **out, CUdeviceptr at)
{
    NEED_READY();
    for (unsigned i = 0; i < count; i++)
        if (cuPointerGetAttribute(out[i], attributes[i], at) != CUDA_SUCCESS)
            memset(out[i], 0, attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 4 : 8);
    return CUDA_SUCCESS;
}

// --- pools: allocation in stream order is allocation now --------------------------------------------

struct pool {
    struct object object;
    cuuint64_t threshold;
};

static struct pool *default_pool(void)
{
    static struct pool *pool;
    pthread_mutex_lock(&standin_lock);
    if (!pool)
        pool = standin_new(sizeof *pool, TAG_POOL);
    pthread_mutex_unlock(&standin_lock);
    return pool;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    NEED_READY();
    if (device < 0 || device >= standin_device()->count)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUmemoryPool)default_pool();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    return cuDeviceGetDefaultMemPool(out, device);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    NEED_READY();
    if (!standin_is(handle, TAG_POOL) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    bool wide = attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    memset(value, 0, wide ? sizeof(cuuint64_t) : sizeof(int));
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        *(cuuint64_t *)value = ((struct pool *)handle)->threshold;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    NEED_READY();
    if (!standin_is(handle, TAG_POOL) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        ((struct pool *)handle)->threshold = *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    (void)keep;
    return standin_is(handle, TAG_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult allocate_on(CUdeviceptr *out, size_t size, CUstream where, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (atomic_load(&stream->capture))
        return standin_unknown("an allocation inside a capture");
    return cuMemAlloc_v2(out, size);
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    return allocate_on(out, size, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream)
{
    return allocate_on(out, size, stream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    return standin_is(pool, TAG_POOL) ? allocate_on(out, size, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    return standin_is(pool, TAG_POOL) ? allocate_on(out, size, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    (void)stream;
    return cuMemFree_v2(at);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream)
{
    return cuMemFreeAsync(at, stream);
}
