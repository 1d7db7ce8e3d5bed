// NVIDIA's occupancy calculator over a batch of blocks, for tests/oracle/test_occupancy.py.
// cuda_occupancy.h comes from the nvidia-cuda-runtime package; it is not part of makeway.
#include <limits.h>
#include <stddef.h>
#include "cuda_occupancy.h"

// properties: major, minor, threads/SM, shared memory/SM, opt-in/block, reserved/block, SMs
int occupancy(const int properties[7], int count, const int (*blocks)[5], int *answers)
{
    cudaOccDeviceProp device = {0};
    device.computeMajor = properties[0];
    device.computeMinor = properties[1];
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = properties[2];
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 49152;
    device.sharedMemPerMultiprocessor = (size_t)properties[3];
    device.sharedMemPerBlockOptin = (size_t)properties[4];
    device.reservedSharedMemPerBlock = (size_t)properties[5];
    device.numSms = properties[6];
    cudaOccDeviceState state = {0};
    state.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
    for (int i = 0; i < count; i++) {
        // one block: threads, registers, static bytes, dynamic bytes, barriers
        cudaOccFuncAttributes kernel = {0};
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = blocks[i][1];
        kernel.sharedSizeBytes = (size_t)blocks[i][2];
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = (size_t)INT_MAX;
        kernel.numBlockBarriers = blocks[i][4];
        cudaOccResult result = {0};
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &kernel, &state, blocks[i][0], (size_t)blocks[i][3]);
        if (error != CUDA_OCC_SUCCESS)
            return error;
        answers[i] = result.activeBlocksPerMultiprocessor;
    }
    return 0;
}
