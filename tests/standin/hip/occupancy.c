// Occupancy as ROCm's own runtime counts it (clr, hipamd/src/hip_platform.cpp): waves by vector and scalar
// registers and by slots of a SIMD, then blocks by local memory. It knows no barriers and no unit of local memory.
#include "standin_hip.h"

#include <limits.h>

#define SCALAR_UNIT 16

static int up(int value, int unit)
{
    return (value + unit - 1) / unit * unit;
}

static int least(int one, int other)
{
    return one < other ? one : other;
}

int occupancy_blocks(const struct function *function, int threads, size_t smem_bytes)
{
    const struct code *code = function->code;
    int wave = standin_needed("warp_threads"), simds = standin_needed("partitions");
    int waves = standin_needed("max_warps") / simds;
    if (code->registers > 0) {
        int lanes = standin_needed("registers") / simds / wave, unit = standin_needed("register_unit") / wave;
        waves = least(waves, lanes / up(code->registers, unit));
    }
    if (code->scalar_registers > 0 && standin_has("scalar_registers"))
        waves = least(waves, standin_needed("scalar_registers") / up(code->scalar_registers, SCALAR_UNIT));
    size_t used = smem_bytes + (size_t)code->static_bytes;
    int by_memory = used ? (int)(hip_smem_block_bytes() / used) : INT_MAX;
    return least(waves * simds * wave / up(threads, wave), by_memory);
}

static hipError_t blocks_of(int *blocks, const void *function, int threads, size_t smem_bytes)
{
    if (!blocks || threads < 1 || (uint64_t)threads > hip_max_threads())
        return hip_result(hipErrorInvalidValue);
    if (!standin_is(function, TAG_FUNCTION))
        return hip_result(hipErrorInvalidDeviceFunction);
    *blocks = occupancy_blocks(function, threads, smem_bytes);
    return hipSuccess;
}

hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, hipFunction_t f, int threads, size_t smem)
{
    return blocks_of(blocks, f, threads, smem);
}

hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t smem)
{
    return blocks_of(blocks, registered_function(host), threads, smem);
}
