// The device, errors and versions.
#include "standin_hip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct error { int code; const char *name, *words; };
struct symbol { const char *name; int version; bool per_thread; void *address; };
extern const struct error standin_errors[];
extern const struct symbol standin_symbols[];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;
static uint64_t max_threads;
static size_t smem_block_bytes;
static _Thread_local hipError_t last = hipSuccess;
static _Thread_local int current;

hipError_t hip_result(hipError_t result)
{
    if (result != hipSuccess)
        last = result;
    return result;
}

static void begin(void)
{
    ready = standin_read_device(getenv("MAKEWAY_STANDIN_DEVICE"));
    if (ready && strncmp(hip_arch(), "gfx", 3)) {
        standin_say("device %s is no AMD device", standin_text("name", "?"));
        abort();
    }
    if (ready) {
        max_threads = (uint64_t)standin_needed("max_threads_per_block");
        smem_block_bytes = (size_t)standin_needed("smem_block_bytes");
    }
}

uint64_t hip_max_threads(void)
{
    return max_threads;
}

size_t hip_smem_block_bytes(void)
{
    return smem_block_bytes;
}

// HIP initialises itself with the first call.
bool hip_ready(void)
{
    pthread_once(&once, begin);
    return ready;
}

const char *hip_arch(void)
{
    return standin_text("arch", "?");
}

static int devices(void)
{
    return hip_ready() ? (int)standin_number("devices", 1) : 0;
}

static hipError_t check(const void *out, int device)
{
    if (!hip_ready())
        return hipErrorNoDevice;
    return !out ? hipErrorInvalidValue : device < 0 || device >= devices() ? hipErrorInvalidDevice : hipSuccess;
}

hipError_t hipInit(unsigned int flags)
{
    return hip_result(flags ? hipErrorInvalidValue : hip_ready() ? hipSuccess : hipErrorNoDevice);
}

hipError_t hipDriverGetVersion(int *version)
{
    *version = HIP_VERSION;
    return hipSuccess;
}

hipError_t hipRuntimeGetVersion(int *version)
{
    *version = HIP_VERSION;
    return hipSuccess;
}

hipError_t hipGetDeviceCount(int *count)
{
    *count = devices();
    return hip_result(*count ? hipSuccess : hipErrorNoDevice);
}

hipError_t hipGetDevice(int *device)
{
    *device = current;
    return hip_result(hip_ready() ? hipSuccess : hipErrorNoDevice);
}

hipError_t hipSetDevice(int device)
{
    hipError_t result = check(&device, device);
    if (result == hipSuccess)
        current = device;
    return hip_result(result);
}

hipError_t hipDeviceGet(hipDevice_t *out, int ordinal)
{
    hipError_t result = check(out, ordinal);
    if (result == hipSuccess)
        *out = ordinal;
    return hip_result(result);
}

hipError_t hipDeviceGetName(char *name, int length, hipDevice_t device)
{
    hipError_t result = check(name, device);
    if (result == hipSuccess)
        snprintf(name, (size_t)length, "%s", standin_text("name", "?"));
    return hip_result(result);
}

hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device)
{
    hipError_t result = check(bytes, device);
    if (result == hipSuccess)
        *bytes = (size_t)standin_number("memory_bytes", 0);
    return hip_result(result);
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *out, int device)
{
    hipError_t result = check(out, device);
    if (result != hipSuccess)
        return hip_result(result);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", standin_text("name", "?"));
    snprintf(out->gcnArchName, sizeof out->gcnArchName, "%s", hip_arch());
    out->totalGlobalMem = (size_t)standin_number("memory_bytes", 0);
    out->sharedMemPerBlock = (size_t)standin_needed("smem_block_bytes");
    out->sharedMemPerMultiprocessor = (size_t)standin_needed("smem_bytes");
    out->maxSharedMemoryPerMultiProcessor = (size_t)standin_needed("smem_bytes");
    out->regsPerBlock = standin_needed("registers");
    out->regsPerMultiprocessor = standin_needed("registers");
    out->warpSize = standin_needed("warp_threads");
    out->maxThreadsPerBlock = standin_needed("max_threads_per_block");
    out->maxThreadsPerMultiProcessor = standin_needed("max_warps") * out->warpSize;
    out->multiProcessorCount = standin_needed("sms");
    out->clockRate = (int)standin_number("clock_khz", 0);
    out->memoryClockRate = (int)standin_number("memory_clock_khz", 0);
    out->memoryBusWidth = (int)standin_number("memory_bus_bits", 0);
    out->l2CacheSize = (int)standin_number("l2_bytes", 0);
    out->cooperativeLaunch = 1;
    out->concurrentKernels = 1;
    return hipSuccess;
}

static long long attribute(hipDeviceAttribute_t which)
{
    switch (which) {
    case hipDeviceAttributeMultiprocessorCount: return standin_needed("sms");
    case hipDeviceAttributeWarpSize: return standin_needed("warp_threads");
    case hipDeviceAttributeMaxThreadsPerBlock: return standin_needed("max_threads_per_block");
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
        return (long long)standin_needed("max_warps") * standin_needed("warp_threads");
    case hipDeviceAttributeMaxSharedMemoryPerBlock: return standin_needed("smem_block_bytes");
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: return standin_needed("smem_bytes");
    case hipDeviceAttributeMaxRegistersPerBlock: return standin_needed("registers");
    case hipDeviceAttributeClockRate: return standin_number("clock_khz", -1);
    default: return -1;
    }
}

hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t which, int device)
{
    hipError_t result = check(value, device);
    if (result != hipSuccess)
        return hip_result(result);
    long long known = attribute(which);
    if (known < 0) {
        char call[64];
        snprintf(call, sizeof call, "hipDeviceGetAttribute(%d)", which);
        return hip_result((hipError_t)standin_unknown(call));
    }
    *value = (int)known;
    return hipSuccess;
}

hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (!hip_ready())
        return hip_result(hipErrorNoDevice);
    *least = standin_needed("least_priority");
    *greatest = standin_needed("greatest_priority");
    return hipSuccess;
}

hipError_t hipDeviceSynchronize(void)
{
    return hip_result(hip_ready() ? hipSuccess : hipErrorNoDevice);
}

// --- errors and addresses -------------------------------------------------------------------------

hipError_t hipGetLastError(void)
{
    hipError_t result = last;
    last = hipSuccess;
    return result;
}

hipError_t hipPeekAtLastError(void)
{
    return last;
}

static const char *error_text(hipError_t code, bool words)
{
    for (const struct error *error = standin_errors; error->name; error++)
        if (error->code == (int)code)
            return words ? error->words : error->name;
    return "hipErrorUnknown";
}

const char *hipGetErrorName(hipError_t code)
{
    return error_text(code, false);
}

const char *hipGetErrorString(hipError_t code)
{
    return error_text(code, true);
}

hipError_t hipGetProcAddress(const char *name, void **out, int version, uint64_t flags,
                             hipDriverProcAddressQueryResult *status)
{
    (void)version, (void)flags;
    // The plain name means the layout of ROCm 6 and later, which is all there is here.
    if (!strcmp(name, "hipGetDeviceProperties"))
        name = "hipGetDevicePropertiesR0600";
    *out = NULL;
    for (const struct symbol *symbol = standin_symbols; symbol->name && !*out; symbol++)
        if (!strcmp(symbol->name, name))
            *out = symbol->address;
    if (status)
        *status = *out ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return hip_result(*out ? hipSuccess : hipErrorInvalidValue);
}
