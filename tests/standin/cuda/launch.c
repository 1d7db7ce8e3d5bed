// Launches: the limits that CUDA documents, then capture, refusal or a record. No lock is taken here.
#include "standin.h"

#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PORTABLE_CLUSTER 8

static CUresult check_shape(const struct launch *launch)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > INT_MAX || grid[1] > 65535 || grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (!block[0] || !block[1] || !block[2] || block[0] > 1024 || block[1] > 1024 || block[2] > 64)
        return CUDA_ERROR_INVALID_VALUE;
    int threads = (int)(block[0] * block[1] * block[2]);
    if (threads > launch->function->bound_threads)
        return CUDA_ERROR_INVALID_VALUE;
    const unsigned *required = launch->function->code->required;
    if (required[0] && (block[0] != required[0] || block[1] != required[1] || block[2] != required[2]))
        return CUDA_ERROR_INVALID_VALUE;
    return threads > launch->function->register_threads ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
}

static CUresult check_cluster(const struct launch *launch)
{
    struct function *function = launch->function;
    unsigned cluster[3];
    for (int i = 0; i < 3; i++)
        cluster[i] = (unsigned)atomic_load_explicit(&function->cluster[i], memory_order_relaxed);
    if (launch->attributes && launch->attributes->given >> CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION & 1) {
        const CUlaunchAttributeValue *value = &launch->attributes->values[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION];
        unsigned asked[3] = {value->clusterDim.x, value->clusterDim.y, value->clusterDim.z};
        if (cluster[0] && memcmp(asked, cluster, sizeof asked))
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;  // the kernel was compiled for another size
        memcpy(cluster, asked, sizeof cluster);
    }
    if (!cluster[0])
        return atomic_load(&function->must_set_cluster) ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
    unsigned size = cluster[0] * cluster[1] * cluster[2];
    if (size == 0)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (size == 1)
        return CUDA_SUCCESS;
    if (size > (unsigned)standin_device()->max_cluster
        || (size > PORTABLE_CLUSTER && !atomic_load(&function->non_portable_cluster)))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (int i = 0; i < 3; i++)
        if (launch->grid[i] % cluster[i])
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static int attribute_number(const struct launch *launch, CUlaunchAttributeID id, int otherwise)
{
    bool given = launch->attributes && launch->attributes->given >> id & 1;
    return given ? launch->attributes->values[id].cooperative : otherwise;  // the numbers share a place in the union
}

static bool is_cooperative(const struct launch *launch)
{
    return launch->attributes && launch->attributes->given >> CU_LAUNCH_ATTRIBUTE_COOPERATIVE & 1
           && launch->attributes->values[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative;
}

static CUresult check_cooperative(const struct launch *launch)
{
    // All blocks of a cooperative launch must be resident at once.
    int threads = (int)(launch->block[0] * launch->block[1] * launch->block[2]);
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    int each = occupancy_blocks(launch->function, threads, launch->smem_bytes);
    return blocks > (uint64_t)(each < 0 ? 0 : each) * (uint64_t)standin_device()->sms
               ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
               : CUDA_SUCCESS;
}

CUresult launch_check(const struct launch *launch)
{
    CUresult result = check_shape(launch);
    if (result != CUDA_SUCCESS)
        return result;
    int most = function_most_bytes(launch->function, attribute_number(launch, CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE, 0));
    if (launch->smem_bytes > (unsigned)most)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = check_cluster(launch)) != CUDA_SUCCESS)
        return result;
    return is_cooperative(launch) ? check_cooperative(launch) : CUDA_SUCCESS;
}

// --- arguments ------------------------------------------------------------------------------------

// Copies the arguments to `out` as the kernel lays them out; with no `out` only checks that they are there.
CUresult launch_parameters(const struct code *code, void **parameters, void **extra, unsigned char *out)
{
    if (parameters && extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (!code->parameter_count)
        return CUDA_SUCCESS;
    if (parameters) {
        for (unsigned i = 0; i < code->parameter_count; i++) {
            if (!parameters[i])
                return CUDA_ERROR_INVALID_VALUE;
            if (out)
                memcpy(out + code->parameters[i].offset, parameters[i], code->parameters[i].size);
        }
        return CUDA_SUCCESS;
    }
    const void *buffer = NULL;
    size_t size = 0;
    for (void **at = extra; at && *at != CU_LAUNCH_PARAM_END; at += 2) {
        if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = at[1];
        else if (at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *(const size_t *)at[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    const struct parameter *last = &code->parameters[code->parameter_count - 1];
    if (!buffer || size < last->offset + last->size)
        return CUDA_ERROR_INVALID_VALUE;
    if (out)
        memcpy(out, buffer, size < code->parameter_bytes ? size : code->parameter_bytes);
    return CUDA_SUCCESS;
}

static uint64_t digest_of(const struct launch *launch)
{
    const struct code *code = launch->function->code;
    unsigned char bytes[code->parameter_bytes + 1];
    memset(bytes, 0, sizeof bytes);
    if (launch_parameters(code, launch->parameters, launch->extra, bytes) != CUDA_SUCCESS)
        return 0;
    return standin_digest(STANDIN_DIGEST_BEGIN, bytes, code->parameter_bytes);
}

// --- the record -----------------------------------------------------------------------------------

static int priority_of(const struct launch *launch, const struct stream *stream)
{
    if (launch->attributes && launch->attributes->given >> CU_LAUNCH_ATTRIBUTE_PRIORITY & 1)
        return launch->attributes->values[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority;
    return stream->priority;
}

void launch_record(const struct launch *launch, const struct stream *stream, const char *via, CUresult result,
                   bool refused)
{
    int carve_out = attribute_number(launch, CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                     atomic_load(&launch->function->carveout));
    if (result == CUDA_SUCCESS && strcmp(via, "capture"))
        resident_launch(launch, stream->id, priority_of(launch, stream), is_cooperative(launch), carve_out);
    if (!standin_recording())
        return;
    const unsigned *grid = launch->grid, *block = launch->block;
    struct text text;
    text_begin(&text);
    text_add(&text, "{\"launch\": {\"kernel\": ");
    text_name(&text, launch->function->code->name);
    text_add(&text, ", \"call\": \"%s\", \"via\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]", launch->call,
             via, grid[0], grid[1], grid[2], block[0], block[1], block[2]);
    text_add(&text, ", \"smem_bytes\": %u, \"static_bytes\": %d, \"stream\": %u, \"priority\": %d", launch->smem_bytes,
             launch->function->code->static_bytes, stream->id, priority_of(launch, stream));
    text_add(&text, ", \"carve_out\": %d", carve_out);
    text_add(&text, ", \"attributes\": ");
    attributes_text(&text, launch->attributes);
    text_add(&text, ", \"parameters\": \"%016llx\"", (unsigned long long)digest_of(launch));
    text_add(&text, ", \"resident_blocks\": %d",
             occupancy_blocks(launch->function, (int)(block[0] * block[1] * block[2]), launch->smem_bytes));
    text_add(&text, ", \"pid\": %d, \"thread\": %ld, \"error\": %d, \"refused\": %s}}", getpid(), syscall(SYS_gettid),
             result, refused ? "true" : "false");
    text_end(&text);
}

// --- the calls ------------------------------------------------------------------------------------

static CUresult launch_to(const struct launch *launch, struct stream *stream)
{
    CUresult result = launch_parameters(launch->function->code, launch->parameters, launch->extra, NULL);
    if (result == CUDA_SUCCESS)
        result = launch_check(launch);
    bool refused = result == CUDA_SUCCESS && standin_refuses_launch(launch->smem_bytes);
    if (refused)
        result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    const char *via = "stream";
    if (result == CUDA_SUCCESS && atomic_load_explicit(&standin_captures, memory_order_relaxed)) {
        if (atomic_load(&stream->capture)) {
            via = "capture";
            result = capture_kernel(stream, launch);
        } else
            result = capture_implicit(stream);
    }
    launch_record(launch, stream, via, result, refused);
    return result;
}

static CUresult launch_on(struct launch *launch, CUfunction handle, CUstream where, bool per_thread)
{
    NEED_CONTEXT(context);
    struct stream *stream;
    CUresult result = function_of(handle, &launch->function);
    if (result == CUDA_SUCCESS)
        result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    launch->by_kernel = (const void *)handle != launch->function;
    if (stream->context != launch->function->context)
        return CUDA_ERROR_INVALID_HANDLE;  // a function runs only on streams of its own context
    return launch_to(launch, stream);
}

static CUresult launch_plain(const char *call, CUfunction f, const unsigned shape[7], CUstream stream,
                             void **parameters, void **extra, bool per_thread)
{
    struct launch launch = {.call = call, .smem_bytes = shape[6], .parameters = parameters, .extra = extra};
    memcpy(launch.grid, shape, sizeof launch.grid);
    memcpy(launch.block, shape + 3, sizeof launch.block);
    return launch_on(&launch, f, stream, per_thread);
}

static CUresult launch_ex(const char *call, const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra,
                          bool per_thread)
{
    struct attribute_set set;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = attributes_read(&set, config->attrs, config->numAttrs);
    if (result != CUDA_SUCCESS)
        return result;
    struct launch launch = {
        .call = call,
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .smem_bytes = config->sharedMemBytes,
        .parameters = parameters,
        .extra = extra,
        .attributes = &set,
    };
    return launch_on(&launch, f, config->hStream, per_thread);
}

#define SHAPE (unsigned[7]){gx, gy, gz, bx, by, bz, smem}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned smem, CUstream stream, void **parameters, void **extra)
{
    return launch_plain("cuLaunchKernel", f, SHAPE, stream, parameters, extra, false);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned smem, CUstream stream, void **parameters, void **extra)
{
    return launch_plain("cuLaunchKernel_ptsz", f, SHAPE, stream, parameters, extra, true);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
    return launch_ex("cuLaunchKernelEx", config, f, parameters, extra, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
    return launch_ex("cuLaunchKernelEx_ptsz", config, f, parameters, extra, true);
}

static CUresult launch_cooperative(const char *call, CUfunction f, const unsigned shape[7], CUstream stream,
                                   void **parameters, bool per_thread)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    CUlaunchConfig config = {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], stream, &attribute, 1};
    return launch_ex(call, &config, f, parameters, NULL, per_thread);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned smem, CUstream stream, void **parameters)
{
    return launch_cooperative("cuLaunchCooperativeKernel", f, SHAPE, stream, parameters, false);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned smem, CUstream stream, void **parameters)
{
    return launch_cooperative("cuLaunchCooperativeKernel_ptsz", f, SHAPE, stream, parameters, true);
}
