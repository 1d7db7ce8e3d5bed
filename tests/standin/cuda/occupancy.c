// Occupancy by NVIDIA's own calculator (cuda_occupancy.h of the nvidia-cuda-runtime package), so that
// what tests compare makeway's residency with is not makeway's own arithmetic.
#include "standin.h"

#include <limits.h>
#include <cuda_occupancy.h>

struct inputs {
    cudaOccDeviceProp device;
    cudaOccFuncAttributes function;
    cudaOccDeviceState state;
};

static struct inputs inputs_of(const struct function *function)
{
    const struct device *device = standin_device();
    struct inputs inputs = {.state = {.carveoutConfig = atomic_load(&function->carveout)}};
    inputs.device.computeMajor = device->major;
    inputs.device.computeMinor = device->minor;
    inputs.device.maxThreadsPerBlock = device->max_threads_per_block;
    inputs.device.maxThreadsPerMultiprocessor = device->max_threads;
    inputs.device.regsPerBlock = device->registers;
    inputs.device.regsPerMultiprocessor = device->registers;
    inputs.device.warpSize = device->warp_threads;
    inputs.device.sharedMemPerBlock = (size_t)device->smem_default_block_bytes;
    inputs.device.sharedMemPerMultiprocessor = (size_t)device->smem_bytes;
    inputs.device.sharedMemPerBlockOptin = (size_t)device->smem_block_bytes;
    inputs.device.reservedSharedMemPerBlock = (size_t)device->smem_reserved_bytes;
    inputs.device.numSms = device->sms;
    inputs.function.maxThreadsPerBlock = function->bound_threads;
    inputs.function.numRegs = function->code->registers;
    inputs.function.sharedSizeBytes = (size_t)function->code->static_bytes;
    inputs.function.partitionedGCConfig = PARTITIONED_GC_OFF;
    inputs.function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    inputs.function.maxDynamicSharedSizeBytes = (size_t)function_most_bytes(function, 0);
    inputs.function.numBlockBarriers = function->code->barriers;
    return inputs;
}

int occupancy_blocks(const struct function *function, int threads, size_t smem_bytes)
{
    struct inputs inputs = inputs_of(function);
    cudaOccResult result = {0};
    cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &inputs.device, &inputs.function,
                                                                 &inputs.state, threads, smem_bytes);
    return error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1;
}

// What a block takes from an SM, and the shared memory that an SM of the kernel alone is set to: what the kernel prefers,
// else the smallest size that holds as many blocks as the largest would.
struct block_needs occupancy_needs(const struct function *function, int threads, size_t smem_bytes, int carve_out)
{
    struct inputs inputs = inputs_of(function);
    int smem_unit = 1, register_unit = 1;
    cudaOccSMemAllocationGranularity(&smem_unit, &inputs.device);
    cudaOccRegAllocationGranularity(&register_unit, &inputs.device);
    size_t per_block = inputs.function.sharedSizeBytes + inputs.device.reservedSharedMemPerBlock + smem_bytes;
    int warps = __occDivideRoundUp(threads, inputs.device.warpSize);
    int resident = occupancy_blocks(function, threads, smem_bytes);
    struct block_needs needs = {
        .warps = warps,
        .registers_per_warp = __occRoundUp(inputs.function.numRegs * inputs.device.warpSize, register_unit),
        .smem_bytes = (size_t)__occRoundUp((int)per_block, smem_unit),
    };
    needs.carve_out_bytes = needs.smem_bytes * (size_t)(resident < 1 ? 1 : resident);
    if (carve_out >= 0) {
        inputs.state.carveoutConfig = carve_out;
        size_t preferred = 0;
        cudaOccSMemPerMultiprocessor(&preferred, &inputs.device, &inputs.state);
        if (preferred >= needs.smem_bytes)
            needs.carve_out_bytes = preferred;
    }
    cudaOccAlignUpShmemSizeVoltaPlus(&needs.carve_out_bytes, &inputs.device);
    return needs;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads,
                                                              size_t smem_bytes, unsigned int flags)
{
    struct function *function;
    if (!blocks || threads < 1 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = function_of(handle, &function);
    if (result != CUDA_SUCCESS)
        return result;
    int found = occupancy_blocks(function, threads, smem_bytes);
    if (found < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = found;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads, size_t smem_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, smem_bytes, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int threads)
{
    struct function *function;
    CUresult result = bytes ? function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    struct inputs inputs = inputs_of(function);
    cudaOccError error = cudaOccAvailableDynamicSMemPerBlock(bytes, &inputs.device, &inputs.function, &inputs.state,
                                                             blocks, threads);
    return error == CUDA_OCC_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize smem_of,
                                                   size_t smem_bytes, int limit, unsigned int flags)
{
    struct function *function;
    if (!grid || !block || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = function_of(handle, &function);
    if (result != CUDA_SUCCESS)
        return result;
    struct inputs inputs = inputs_of(function);
    if (limit > 0 && limit < inputs.function.maxThreadsPerBlock)
        inputs.function.maxThreadsPerBlock = limit;
    cudaOccError error = cudaOccMaxPotentialOccupancyBlockSize(grid, block, &inputs.device, &inputs.function,
                                                               &inputs.state, smem_of, smem_bytes);
    return error == CUDA_OCC_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize smem_of,
                                          size_t smem_bytes, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, smem_of, smem_bytes, limit, 0);
}

// Clusters are placed inside one GPC: 16 neighbouring SMs here, as for the model of this device.
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction handle, const CUlaunchConfig *config)
{
    struct function *function;
    struct attribute_set set;
    if (!clusters || !config)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = function_of(handle, &function);
    if (result == CUDA_SUCCESS)
        result = attributes_read(&set, config->attrs, config->numAttrs);
    if (result != CUDA_SUCCESS)
        return result;
    int size = 1;
    for (int i = 0; i < 3; i++)
        size *= atomic_load(&function->cluster[i]);
    if (set.given >> CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION & 1) {
        const CUlaunchAttributeValue *value = &set.values[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION];
        size = (int)(value->clusterDim.x * value->clusterDim.y * value->clusterDim.z);
    }
    if (size < 1 || size > standin_device()->max_cluster)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    int threads = (int)(config->blockDimX * config->blockDimY * config->blockDimZ);
    int blocks = occupancy_blocks(function, threads, config->sharedMemBytes), gpc = 16;
    *clusters = blocks < 0 ? 0 : blocks * gpc / size * (standin_device()->sms / gpc);
    return CUDA_SUCCESS;
}
