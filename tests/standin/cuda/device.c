// The device, as its file describes it.
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device device;
static atomic_bool ready;
pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;

static void describe(void)
{
    int arch = 0;
    sscanf(standin_text("arch", ""), "sm_%d", &arch);
    snprintf(device.name, sizeof device.name, "%s", standin_text("name", "?"));
    device.count = (int)standin_number("devices", 1);
    device.driver_version = (int)standin_number("driver_version", CUDA_VERSION);
    device.major = arch / 10;
    device.minor = arch % 10;
    device.sms = standin_needed("sms");
    device.warp_threads = standin_needed("warp_threads");
    device.max_threads_per_block = standin_needed("max_threads_per_block");
    device.max_threads = standin_needed("max_warps") * device.warp_threads;
    device.max_blocks = standin_needed("max_blocks");
    device.registers = standin_needed("registers");
    device.register_unit = standin_needed("register_unit");
    device.partitions = standin_needed("partitions");
    device.max_registers_per_thread = standin_needed("max_registers_per_thread");
    device.smem_bytes = standin_needed("smem_bytes");
    device.smem_block_bytes = standin_needed("smem_block_bytes");
    device.smem_default_block_bytes = standin_needed("smem_default_block_bytes");
    device.smem_reserved_bytes = standin_needed("smem_reserved_bytes");
    device.max_cluster = (int)standin_number("max_cluster", 1);
    device.least_priority = standin_needed("least_priority");
    device.greatest_priority = standin_needed("greatest_priority");
    device.memory_bytes = (size_t)standin_number("memory_bytes", 1ll << 34);
}

const struct device *standin_device(void)
{
    return &device;
}

bool standin_ready(void)
{
    return atomic_load_explicit(&ready, memory_order_acquire);
}

static void read_once(void)
{
    if (!standin_read_device(getenv("MAKEWAY_STANDIN_DEVICE")))
        return;
    describe();
    if (!device.major) {
        standin_say("device %s is no NVIDIA device", device.name);
        abort();
    }
}

// Programs ask for the version, and look up functions by it, before they initialise.
int standin_driver_version(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_once);
    return device.major ? device.driver_version : CUDA_VERSION;
}

CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    standin_driver_version();
    if (!device.major)
        return CUDA_ERROR_NO_DEVICE;
    atomic_store_explicit(&ready, true, memory_order_release);
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = standin_driver_version();
    return CUDA_SUCCESS;
}

static CUresult check(const void *out, CUdevice dev)
{
    if (!standin_ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return dev >= 0 && dev < device.count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    CUresult result = check(out, ordinal);
    if (result == CUDA_SUCCESS)
        *out = ordinal;
    return result;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = check(count, 0);
    if (result == CUDA_SUCCESS)
        *count = device.count;
    return result;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice dev)
{
    CUresult result = check(name, dev);
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "%s", device.name);
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult result = check(bytes, dev);
    if (result == CUDA_SUCCESS)
        *bytes = device.memory_bytes;
    return result;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    CUresult result = check(major, dev);
    if (result != CUDA_SUCCESS)
        return result;
    *major = device.major;
    *minor = device.minor;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    CUresult result = check(uuid, dev);
    if (result != CUDA_SUCCESS)
        return result;
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "stand-in", 8);
    uuid->bytes[15] = (char)dev;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice dev)
{
    CUresult result = check(id, dev);
    if (result == CUDA_SUCCESS)
        snprintf(id, (size_t)length, "0000:%02x:00.0", dev + 1);
    return result;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    CUresult result = check(can, dev);
    if (result == CUDA_SUCCESS && (result = check(can, peer)) == CUDA_SUCCESS)
        *can = dev != peer;
    return result;
}
