// Launches: ROCm's checks, then refusal or a record. No lock is taken here.
#include "standin_hip.h"

#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

hipError_t launch_check(const struct launch *launch)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > INT_MAX || grid[1] > 65536 || grid[2] > 65536)
        return hipErrorInvalidValue;
    if (!block[0] || !block[1] || !block[2])
        return hipErrorInvalidValue;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (threads > hip_max_threads())
        return hipErrorInvalidValue;
    if (launch->parameters && launch->extra)
        return hipErrorInvalidValue;
    const struct code *code = launch->function->code;
    if (code->parameter_count && !launch->parameters && !launch->extra)
        return hipErrorInvalidValue;
    if (threads > (uint64_t)code->max_threads)
        return hipErrorLaunchFailure;
    // ROCm compares the dynamic part alone and lets the queue fault on the sum; here the sum counts.
    if (launch->smem_bytes + (size_t)code->static_bytes > hip_smem_block_bytes())
        return hipErrorInvalidValue;
    if (!launch->cooperative)
        return hipSuccess;
    int each = occupancy_blocks(launch->function, (int)threads, launch->smem_bytes);
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    return blocks > (uint64_t)each * (uint64_t)standin_needed("sms") ? hipErrorCooperativeLaunchTooLarge : hipSuccess;
}

static uint64_t digest_of(const struct launch *launch)
{
    const struct code *code = launch->function->code;
    unsigned char bytes[code->argument_bytes + 1];
    memset(bytes, 0, sizeof bytes);
    for (unsigned i = 0; i < code->parameter_count && launch->parameters; i++)
        memcpy(bytes + code->parameters[i].offset, launch->parameters[i], code->parameters[i].size);
    if (launch->extra && launch->extra[0] == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
        size_t size = *(const size_t *)launch->extra[3];
        memcpy(bytes, launch->extra[1], size < code->argument_bytes ? size : code->argument_bytes);
    }
    return standin_digest(STANDIN_DIGEST_BEGIN, bytes, code->argument_bytes);
}

void launch_record(const struct launch *launch, const struct stream *stream, hipError_t result, bool refused)
{
    if (!standin_recording())
        return;
    const unsigned *grid = launch->grid, *block = launch->block;
    struct text text;
    text_begin(&text);
    text_add(&text, "{\"launch\": {\"kernel\": ");
    text_name(&text, launch->function->code->name);
    text_add(&text, ", \"call\": \"%s\", \"via\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]",
             launch->call, launch->node ? "graph" : "stream", grid[0], grid[1], grid[2], block[0], block[1], block[2]);
    text_add(&text, ", \"smem_bytes\": %zu, \"static_bytes\": %d, \"stream\": %u, \"priority\": %d", launch->smem_bytes,
             launch->function->code->static_bytes, stream->id, stream->priority);
    text_add(&text, ", \"attributes\": {%s}, \"parameters\": \"%016llx\"",
             launch->cooperative ? "\"cooperative\": 1" : "",
             result == hipSuccess ? (unsigned long long)digest_of(launch) : 0);
    text_add(&text, ", \"resident_blocks\": %d",
             occupancy_blocks(launch->function, (int)(block[0] * block[1] * block[2]), launch->smem_bytes));
    text_add(&text, ", \"pid\": %d, \"thread\": %ld, \"error\": %d, \"refused\": %s}}", getpid(), syscall(SYS_gettid),
             result, refused ? "true" : "false");
    text_end(&text);
}

static hipError_t launch_on(struct launch *launch, const void *function, hipStream_t where)
{
    const struct stream *stream;
    if (!hip_ready())
        return hip_result(hipErrorNoDevice);
    if (!standin_is(function, TAG_FUNCTION))
        return hip_result(hipErrorInvalidResourceHandle);
    launch->function = function;
    hipError_t result = stream_of(where, &stream);
    if (result != hipSuccess)
        return hip_result(result);
    result = launch_check(launch);
    bool refused = result == hipSuccess && standin_refuses_launch((unsigned)launch->smem_bytes);
    if (refused)
        result = hipErrorLaunchOutOfResources;
    launch_record(launch, stream, result, refused);
    return hip_result(result);
}

hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned smem, hipStream_t stream, void **parameters, void **extra)
{
    struct launch launch = {"hipModuleLaunchKernel", NULL, {gx, gy, gz}, {bx, by, bz}, smem, parameters, extra, false, false};
    return launch_on(&launch, f, stream);
}

hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                            unsigned by, unsigned bz, unsigned smem, hipStream_t stream,
                                            void **parameters)
{
    struct launch launch = {
        "hipModuleLaunchCooperativeKernel", NULL, {gx, gy, gz}, {bx, by, bz}, smem, parameters, NULL, true, false};
    return launch_on(&launch, f, stream);
}

// Takes the number of threads, not of blocks. Declared in hip_ext.h, which is C++ only.
hipError_t hipExtModuleLaunchKernel(hipFunction_t f, uint32_t tx, uint32_t ty, uint32_t tz, uint32_t bx, uint32_t by,
                                    uint32_t bz, size_t smem, hipStream_t stream, void **parameters, void **extra,
                                    hipEvent_t before, hipEvent_t after, uint32_t flags)
{
    (void)before, (void)after, (void)flags;
    if (!bx || !by || !bz || tx % bx || ty % by || tz % bz)
        return hip_result(hipErrorInvalidValue);
    struct launch launch = {
        "hipExtModuleLaunchKernel", NULL, {tx / bx, ty / by, tz / bz}, {bx, by, bz}, smem, parameters, extra, false, false};
    return launch_on(&launch, f, stream);
}

static hipError_t launch_host(const char *call, const void *host, dim3 grid, dim3 block, void **parameters, size_t smem,
                              hipStream_t stream, bool cooperative)
{
    const struct function *function = registered_function(host);
    struct launch launch = {call, NULL, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z},
                            smem, parameters, NULL, cooperative, false};
    return function ? launch_on(&launch, function, stream) : hip_result(hipErrorInvalidDeviceFunction);
}

hipError_t hipLaunchKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t smem, hipStream_t stream)
{
    return launch_host("hipLaunchKernel", host, grid, block, parameters, smem, stream, false);
}

hipError_t hipExtLaunchKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t smem,
                              hipStream_t stream, hipEvent_t before, hipEvent_t after, int flags)
{
    (void)before, (void)after, (void)flags;
    return launch_host("hipExtLaunchKernel", host, grid, block, parameters, smem, stream, false);
}

hipError_t hipLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **parameters, unsigned int smem,
                                      hipStream_t stream)
{
    return launch_host("hipLaunchCooperativeKernel", host, grid, block, parameters, smem, stream, true);
}

hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG *config, hipFunction_t f, void **parameters, void **extra)
{
    struct launch launch = {"hipDrvLaunchKernelEx",
                            NULL,
                            {config->gridDimX, config->gridDimY, config->gridDimZ},
                            {config->blockDimX, config->blockDimY, config->blockDimZ},
                            config->sharedMemBytes,
                            parameters,
                            extra,
                            false,
                            false};
    for (unsigned i = 0; i < config->numAttrs; i++)
        launch.cooperative |= config->attrs[i].id == hipLaunchAttributeCooperative && config->attrs[i].val.cooperative;
    return launch_on(&launch, f, config->hStream);
}
