/* The CUDA driver functions that the shim replaces (up to NODE_DESTROY) or calls. */
#ifndef MAKEWAY_CUDA_DRIVER_H
#define MAKEWAY_CUDA_DRIVER_H

#include "shim.h"

enum cuda_symbol {
    LAUNCH,
    LAUNCH_PTSZ,
    EX,
    EX_PTSZ,
    COOPERATIVE,
    COOPERATIVE_PTSZ,
    ADDRESS,
    ADDRESS_V2,
    FUNCTION_SET,
    KERNEL_SET,
    MODULE_UNLOAD,
    LIBRARY_UNLOAD,
    CONTEXT_DESTROY,
    CONTEXT_DESTROY_V2,
    PRIMARY_RESET,
    PRIMARY_RESET_V2,
    PRIMARY_RELEASE,
    PRIMARY_RELEASE_V2,
    MODULE_LOAD,
    MODULE_LOAD_DATA,
    MODULE_LOAD_DATA_EX,
    LIBRARY_LOAD_DATA,
    LIBRARY_LOAD_FILE,
    LIBRARY_KERNEL,
    LIBRARY_KERNELS,
    ACTIVE,
    ACTIVE_FLAGS,
    AVAILABLE,
    POTENTIAL,
    POTENTIAL_FLAGS,
    ACTIVE_CLUSTERS,
    POTENTIAL_CLUSTER,
    ADD_KERNEL,
    ADD_KERNEL_V2,
    SET_KERNEL,
    SET_KERNEL_V2,
    SET_EXEC_KERNEL,
    SET_EXEC_KERNEL_V2,
    ADD_NODE,
    ADD_NODE_V2,
    ADD_NODE_V3,
    SET_NODE,
    SET_NODE_V2,
    SET_EXEC_NODE,
    NODE_SET_ATTRIBUTE,
    GRAPH_LAUNCH,
    GRAPH_LAUNCH_PTSZ,
    GRAPH_DESTROY,
    NODE_DESTROY,
    NODE_GET,
    NODE_GET_ATTRIBUTE,
    FUNCTION_NAME,
    KERNEL_NAME,
    FUNCTION_GET,
    KERNEL_GET,
    FUNCTION_MODULE,
    KERNEL_LIBRARY,
    KERNEL_FUNCTION,
    CURRENT,
    CURRENT_DEVICE,
    DEVICE_GET,
    PRIORITY_RANGE,
    CUDA_SYMBOLS
};

#define REAL(type, symbol) ((type)real_of(&cuda, symbol))

/* The entry of a kernel for this thread's context, decided on first use; NULL: the shim is off or full. */
struct kernel *cuda_meet(void *function);

static inline struct kernel *cuda_kernel(void *function) {
    struct kernel *kernel = kernels_find(function, NULL);
    if (UNLIKELY(!kernel || kernel->by_context ||
                 atomic_load_explicit(&kernel->generation, memory_order_acquire) !=
                     atomic_load_explicit(&shim_generation, memory_order_relaxed)))
        return cuda_meet(function);
    return kernel;
}

#define SAYS_COOPERATIVE "a cooperative launch: with a pad its blocks might not all fit at once"

/* What the attributes of a launch say about shared memory and about blocks that must run together. */
struct wishes {
    uint32_t cluster; /* blocks; 0: nothing said */
    uint32_t mode;    /* of shared memory; 0: nothing said */
    bool cooperative;
    bool carved;
};

static inline struct wishes wishes_of(const struct mw_config *config) {
    struct wishes wishes = {0};
    for (uint32_t at = 0; config->attributes && at < config->attribute_count; at++) {
        const struct mw_attribute *attribute = &config->attributes[at];
        const uint32_t *sides = attribute->value.sides;
        switch (attribute->id) {
        case MW_ATTRIBUTE_COOPERATIVE: wishes.cooperative = attribute->value.number != 0; break;
        case MW_ATTRIBUTE_CLUSTER: wishes.cluster = sides[0] * sides[1] * sides[2]; break;
        case MW_ATTRIBUTE_CARVE_OUT: wishes.carved = true; break;
        case MW_ATTRIBUTE_SMEM_MODE: wishes.mode = (uint32_t)attribute->value.number; break;
        }
    }
    return wishes;
}

/* A cached answer to "what would a pad do to launches of this shape?": the shape, whether whole clusters still fit, and the
 * grid that fills the device exactly without the pad (0: the pad takes no block off an SM). */
enum { BYTES_BITS = 18, CLUSTER_BITS = 4, GRID_BITS = 24, MOST_THREADS = 2048 };
#define SHAPE_KNOWN 1ull
#define SHAPE_WHOLE 2ull
#define SHAPE_ANSWER (((1ull << GRID_BITS) - 1) << 2 | SHAPE_WHOLE)

static inline uint64_t shape_of(uint32_t threads, uint32_t asked, uint32_t cluster) {
    uint64_t shape = (uint64_t)threads << BYTES_BITS | asked;
    return (shape << CLUSTER_BITS | cluster) << (GRID_BITS + 2) | SHAPE_KNOWN;
}

static inline _Atomic uint64_t *shape_place(struct kernel *kernel, uint32_t threads, uint32_t asked, uint32_t cluster) {
    return &kernel->shapes[(threads / 32 + asked / 128 + cluster) % SHAPES];
}

/* Whether a launch that asks for so many bytes may be padded without a look at any limit. */
static inline bool cuda_is_easy(const struct kernel *kernel, uint32_t asked) {
    uint64_t easy = atomic_load_explicit(&kernel->easy, memory_order_relaxed);
    return easy >> 32 == atomic_load_explicit(&shim_epoch, memory_order_relaxed) && asked < (uint32_t)easy;
}

/* The common case of cuda_pad: a launch like one that was padded before. False: ask cuda_pad. */
static inline bool cuda_pad_again(struct kernel *kernel, const struct mw_config *config, uint32_t cluster,
                                  uint32_t *given) {
    uint32_t threads = config->block[0] * config->block[1] * config->block[2], asked = config->smem_bytes;
    uint64_t blocks = (uint64_t)config->grid[0] * config->grid[1] * config->grid[2];
    if (!cluster)
        cluster = kernel->cluster;
    uint64_t known = atomic_load_explicit(shape_place(kernel, threads, asked, cluster), memory_order_relaxed);
    if (UNLIKELY(!cuda_is_easy(kernel, asked) ||
                 (known & ~(SHAPE_ANSWER ^ SHAPE_WHOLE)) != (shape_of(threads, asked, cluster) | SHAPE_WHOLE) ||
                 (known & SHAPE_ANSWER) >> 2 == blocks))
        return false;
    *given = asked + kernel->value;
    if (atomic_load_explicit(&kernel->action, memory_order_relaxed) == FIT) {
        uint64_t fitted = atomic_load_explicit(&kernel->fitted, memory_order_relaxed);
        *given = (uint32_t)fitted;
        return fitted >> 32 == threads && *given > asked;
    }
    return true;
}

/* Whether to launch with `given` bytes of dynamic shared memory. If not, the launch is already counted. */
bool cuda_pad(struct kernel *kernel, const struct mw_config *config, struct wishes wishes, uint32_t *given);

/* How many bytes a launch of so many threads with `asked` bytes would get, for the program's own questions; false: as
 * many as it asks for. Nothing is counted. */
bool cuda_would_pad(struct kernel *kernel, uint32_t threads, uint32_t asked, uint32_t *given);

/* A changed launch was refused and then repeated unchanged: the refusal is ours only if the repeat succeeded. */
mw_result cuda_settled(struct kernel *kernel, const char *what, uint32_t epoch, mw_result refusal, mw_result repeat);

/* The same of a carve-out, with the pad still there. */
mw_result cuda_uncarved(struct kernel *kernel, mw_result refusal, mw_result without);

/* --- what programs call ----------------------------------------------------------------------- */

#define DIMENSIONS uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz

EXPORT mw_result cuLaunchKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters,
                                void **extra);
EXPORT mw_result cuLaunchKernel_ptsz(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters,
                                     void **extra);
EXPORT mw_result cuLaunchKernelEx(const struct mw_config *config, void *function, void **parameters, void **extra);
EXPORT mw_result cuLaunchKernelEx_ptsz(const struct mw_config *config, void *function, void **parameters, void **extra);
EXPORT mw_result cuLaunchCooperativeKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters);
EXPORT mw_result cuLaunchCooperativeKernel_ptsz(void *function, DIMENSIONS, uint32_t smem, void *stream,
                                                void **parameters);
EXPORT mw_result cuGetProcAddress(const char *name, void **answer, int version, uint64_t flags);
EXPORT mw_result cuGetProcAddress_v2(const char *name, void **answer, int version, uint64_t flags, int *status);
EXPORT mw_result cuFuncSetAttribute(void *function, int id, int value);
EXPORT mw_result cuKernelSetAttribute(int id, int value, void *kernel, int device);
EXPORT mw_result cuModuleUnload(void *module);
EXPORT mw_result cuLibraryUnload(void *library);
EXPORT mw_result cuCtxDestroy(void *context);
EXPORT mw_result cuCtxDestroy_v2(void *context);
EXPORT mw_result cuDevicePrimaryCtxReset(int device);
EXPORT mw_result cuDevicePrimaryCtxReset_v2(int device);
EXPORT mw_result cuDevicePrimaryCtxRelease(int device);
EXPORT mw_result cuDevicePrimaryCtxRelease_v2(int device);
EXPORT mw_result cuModuleLoad(void **module, const char *path);
EXPORT mw_result cuModuleLoadData(void **module, const void *image);
EXPORT mw_result cuModuleLoadDataEx(void **module, const void *image, uint32_t count, void *options, void **values);
EXPORT mw_result cuLibraryLoadData(void **library, const void *image, void *jit, void **jit_values, uint32_t jits,
                                   void *options, void **values, uint32_t count);
EXPORT mw_result cuLibraryLoadFromFile(void **library, const char *path, void *jit, void **jit_values, uint32_t jits,
                                       void *options, void **values, uint32_t count);
EXPORT mw_result cuLibraryGetKernel(void **kernel, void *library, const char *name);
EXPORT mw_result cuLibraryEnumerateKernels(void **kernels, uint32_t count, void *library);
EXPORT mw_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t smem);
EXPORT mw_result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *function, int threads,
                                                                      size_t smem, uint32_t flags);
EXPORT mw_result cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, void *function, int blocks, int threads);
EXPORT mw_result cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function, mw_bytes_of smem_of,
                                                  size_t smem, int most);
EXPORT mw_result cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function, mw_bytes_of smem_of,
                                                           size_t smem, int most, uint32_t flags);
EXPORT mw_result cuOccupancyMaxActiveClusters(int *clusters, void *function, const struct mw_config *config);
EXPORT mw_result cuOccupancyMaxPotentialClusterSize(int *blocks, void *function, const struct mw_config *config);

EXPORT mw_result cuGraphAddKernelNode(void **node, void *graph, void *const *after, size_t count, const void *given);
EXPORT mw_result cuGraphAddKernelNode_v2(void **node, void *graph, void *const *after, size_t count, const void *given);
EXPORT mw_result cuGraphKernelNodeSetParams(void *node, const void *given);
EXPORT mw_result cuGraphKernelNodeSetParams_v2(void *node, const void *given);
EXPORT mw_result cuGraphExecKernelNodeSetParams(void *exec, void *node, const void *given);
EXPORT mw_result cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *given);
EXPORT mw_result cuGraphAddNode(void **node, void *graph, void *const *after, size_t count, struct mw_node *given);
EXPORT mw_result cuGraphAddNode_v2(void **node, void *graph, void *const *after, const void *edges, size_t count,
                                   struct mw_node *given);
EXPORT mw_result cuGraphAddNode_v3(void **node, void *graph, void *const *after, const void *edges, size_t count,
                                   struct mw_node *given);
EXPORT mw_result cuGraphNodeSetParams(void *node, struct mw_node *given);
EXPORT mw_result cuGraphNodeSetParams_v2(void *node, struct mw_node *given);
EXPORT mw_result cuGraphExecNodeSetParams(void *exec, void *node, struct mw_node *given);
EXPORT mw_result cuGraphKernelNodeSetAttribute(void *node, uint32_t id, const union mw_attribute_value *value);
EXPORT mw_result cuGraphLaunch(void *executable, void *stream);
EXPORT mw_result cuGraphLaunch_ptsz(void *executable, void *stream);
EXPORT mw_result cuGraphDestroy(void *graph);
EXPORT mw_result cuGraphDestroyNode(void *node);

#endif
