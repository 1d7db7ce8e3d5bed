// Copies and fills, done at once; device pointers must lie inside an allocation.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

struct span { unsigned char *at; size_t pitch, height; };

static CUresult span_of(CUmemorytype kind, const void *host, CUdeviceptr device, const size_t place[3], size_t pitch,
                        size_t height, const CUDA_MEMCPY3D *copy, struct span *out)
{
    if (kind == CU_MEMORYTYPE_ARRAY)
        return standin_unknown("a copy of an array");
    out->pitch = pitch ? pitch : place[0] + copy->WidthInBytes;
    out->height = height ? height : place[1] + copy->Height;
    uintptr_t base = kind == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device;
    out->at = (unsigned char *)base + place[0] + out->pitch * (place[1] + out->height * place[2]);
    if (!base)
        return CUDA_ERROR_INVALID_VALUE;
    size_t reach = out->pitch * (out->height * (copy->Depth - 1) + copy->Height - 1) + copy->WidthInBytes;
    if (kind == CU_MEMORYTYPE_DEVICE && !memory_holds((CUdeviceptr)(uintptr_t)out->at, reach))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult memory_copy(const CUDA_MEMCPY3D *copy)
{
    struct span from, to;
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
        return CUDA_SUCCESS;
    size_t from_place[3] = {copy->srcXInBytes, copy->srcY, copy->srcZ};
    size_t to_place[3] = {copy->dstXInBytes, copy->dstY, copy->dstZ};
    CUresult result = span_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, from_place, copy->srcPitch,
                              copy->srcHeight, copy, &from);
    if (result == CUDA_SUCCESS)
        result = span_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, to_place, copy->dstPitch,
                         copy->dstHeight, copy, &to);
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++)
            memmove(to.at + to.pitch * (y + to.height * z), from.at + from.pitch * (y + from.height * z),
                    copy->WidthInBytes);
    return CUDA_SUCCESS;
}

static CUresult copy_on(const CUDA_MEMCPY3D *copy, CUstream where, bool per_thread)
{
    NEED_CONTEXT(context);
    struct stream *stream;
    CUresult result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (atomic_load(&stream->capture))
        return capture_copy(stream, copy);
    return (result = capture_implicit(stream)) == CUDA_SUCCESS ? memory_copy(copy) : result;
}

static CUDA_MEMCPY3D line(size_t size)
{
    return (CUDA_MEMCPY3D){.WidthInBytes = size, .Height = 1, .Depth = 1};
}

static CUDA_MEMCPY3D to_device(CUdeviceptr to, const void *from, size_t size)
{
    CUDA_MEMCPY3D copy = line(size);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to;
    return copy;
}

static CUDA_MEMCPY3D to_host(void *to, CUdeviceptr from, size_t size)
{
    CUDA_MEMCPY3D copy = line(size);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    return copy;
}

// With unified addressing the pointer itself says whose memory it is.
static CUDA_MEMCPY3D either(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    CUDA_MEMCPY3D copy = line(size);
    copy.srcMemoryType = memory_holds(from, 1) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstMemoryType = memory_holds(to, 1) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcDevice = from;
    copy.srcHost = (const void *)(uintptr_t)from;
    copy.dstDevice = to;
    copy.dstHost = (void *)(uintptr_t)to;
    return copy;
}

#define COPY(name, make, to_type, from_type, now, later) \
    CUresult name##now(to_type to, from_type from, size_t size) \
    { \
        CUDA_MEMCPY3D copy = make(to, from, size); \
        return copy_on(&copy, NULL, false); \
    } \
    CUresult name##now##_ptds(to_type to, from_type from, size_t size) \
    { \
        CUDA_MEMCPY3D copy = make(to, from, size); \
        return copy_on(&copy, NULL, true); \
    } \
    CUresult name##later(to_type to, from_type from, size_t size, CUstream stream) \
    { \
        CUDA_MEMCPY3D copy = make(to, from, size); \
        return copy_on(&copy, stream, false); \
    } \
    CUresult name##later##_ptsz(to_type to, from_type from, size_t size, CUstream stream) \
    { \
        CUDA_MEMCPY3D copy = make(to, from, size); \
        return copy_on(&copy, stream, true); \
    }

COPY(cuMemcpyHtoD, to_device, CUdeviceptr, const void *, _v2, Async_v2)
COPY(cuMemcpyDtoH, to_host, void *, CUdeviceptr, _v2, Async_v2)
COPY(cuMemcpyDtoD, either, CUdeviceptr, CUdeviceptr, _v2, Async_v2)
COPY(cuMemcpy, either, CUdeviceptr, CUdeviceptr, , Async)

// --- fills ----------------------------------------------------------------------------------------

CUresult memory_set(const CUDA_MEMSET_NODE_PARAMS *set)
{
    size_t row = set->width * set->elementSize, pitch = set->height > 1 ? set->pitch : row;
    if (!set->width || !set->height)
        return CUDA_SUCCESS;
    if (!memory_holds(set->dst, pitch * (set->height - 1) + row))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t y = 0; y < set->height; y++)
        for (size_t x = 0; x < set->width; x++)
            memcpy((char *)(uintptr_t)set->dst + y * pitch + x * set->elementSize, &set->value, set->elementSize);
    return CUDA_SUCCESS;
}

static CUresult set_on(CUdeviceptr at, unsigned value, unsigned size, size_t count, CUstream where, bool per_thread)
{
    NEED_CONTEXT(context);
    CUDA_MEMSET_NODE_PARAMS set = {.dst = at, .value = value, .elementSize = size, .width = count, .height = 1};
    struct stream *stream;
    CUresult result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (atomic_load(&stream->capture))
        return capture_set(stream, &set);
    return (result = capture_implicit(stream)) == CUDA_SUCCESS ? memory_set(&set) : result;
}

#define SET(bits, type) \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr at, type value, size_t count) \
    { \
        return set_on(at, value, sizeof(type), count, NULL, false); \
    } \
    CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr at, type value, size_t count) \
    { \
        return set_on(at, value, sizeof(type), count, NULL, true); \
    } \
    CUresult cuMemsetD##bits##Async(CUdeviceptr at, type value, size_t count, CUstream stream) \
    { \
        return set_on(at, value, sizeof(type), count, stream, false); \
    } \
    CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr at, type value, size_t count, CUstream stream) \
    { \
        return set_on(at, value, sizeof(type), count, stream, true); \
    }

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned int)
