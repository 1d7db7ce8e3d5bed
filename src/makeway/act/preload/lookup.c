/* cuGetProcAddress, the driver's own look-up, which the CUDA runtime uses for everything; and the table of names. */
#include "cuda_driver.h"

#include <string.h>

static const struct {
    const char *name;
    int from, before; /* CUDA versions that match; 0: no bound */
    int symbol, per_thread;
} looked_up[] = {
    {"cuLaunchKernel", 0, 0, LAUNCH, LAUNCH_PTSZ},
    {"cuLaunchKernelEx", 0, 0, EX, EX_PTSZ},
    {"cuLaunchCooperativeKernel", 0, 0, COOPERATIVE, COOPERATIVE_PTSZ},
    {"cuGetProcAddress", 0, 12000, ADDRESS, ADDRESS},
    {"cuGetProcAddress", 12000, 0, ADDRESS_V2, ADDRESS_V2},
    {"cuGetProcAddress_v2", 0, 0, ADDRESS_V2, ADDRESS_V2},
    {"cuFuncSetAttribute", 0, 0, FUNCTION_SET, FUNCTION_SET},
    {"cuKernelSetAttribute", 0, 0, KERNEL_SET, KERNEL_SET},
    {"cuModuleUnload", 0, 0, MODULE_UNLOAD, MODULE_UNLOAD},
    {"cuLibraryUnload", 0, 0, LIBRARY_UNLOAD, LIBRARY_UNLOAD},
    {"cuCtxDestroy", 4000, 0, CONTEXT_DESTROY_V2, CONTEXT_DESTROY_V2},
    {"cuDevicePrimaryCtxReset", 0, 11000, PRIMARY_RESET, PRIMARY_RESET},
    {"cuDevicePrimaryCtxReset", 11000, 0, PRIMARY_RESET_V2, PRIMARY_RESET_V2},
    {"cuDevicePrimaryCtxRelease", 0, 11000, PRIMARY_RELEASE, PRIMARY_RELEASE},
    {"cuDevicePrimaryCtxRelease", 11000, 0, PRIMARY_RELEASE_V2, PRIMARY_RELEASE_V2},
    {"cuModuleLoad", 0, 0, MODULE_LOAD, MODULE_LOAD},
    {"cuModuleLoadData", 0, 0, MODULE_LOAD_DATA, MODULE_LOAD_DATA},
    {"cuModuleLoadDataEx", 0, 0, MODULE_LOAD_DATA_EX, MODULE_LOAD_DATA_EX},
    {"cuLibraryLoadData", 0, 0, LIBRARY_LOAD_DATA, LIBRARY_LOAD_DATA},
    {"cuLibraryLoadFromFile", 0, 0, LIBRARY_LOAD_FILE, LIBRARY_LOAD_FILE},
    {"cuLibraryGetKernel", 0, 0, LIBRARY_KERNEL, LIBRARY_KERNEL},
    {"cuLibraryEnumerateKernels", 0, 0, LIBRARY_KERNELS, LIBRARY_KERNELS},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 0, 0, ACTIVE, ACTIVE},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 0, 0, ACTIVE_FLAGS, ACTIVE_FLAGS},
    {"cuOccupancyAvailableDynamicSMemPerBlock", 0, 0, AVAILABLE, AVAILABLE},
    {"cuOccupancyMaxPotentialBlockSize", 0, 0, POTENTIAL, POTENTIAL},
    {"cuOccupancyMaxPotentialBlockSizeWithFlags", 0, 0, POTENTIAL_FLAGS, POTENTIAL_FLAGS},
    {"cuOccupancyMaxActiveClusters", 0, 0, ACTIVE_CLUSTERS, ACTIVE_CLUSTERS},
    {"cuOccupancyMaxPotentialClusterSize", 0, 0, POTENTIAL_CLUSTER, POTENTIAL_CLUSTER},
    /* versions: cudaTypedefs.h of CUDA 13.4, PFN_cuGraph*_v* */
    {"cuGraphAddKernelNode", 0, 12000, ADD_KERNEL, ADD_KERNEL},
    {"cuGraphAddKernelNode", 12000, 0, ADD_KERNEL_V2, ADD_KERNEL_V2},
    {"cuGraphKernelNodeSetParams", 0, 12000, SET_KERNEL, SET_KERNEL},
    {"cuGraphKernelNodeSetParams", 12000, 0, SET_KERNEL_V2, SET_KERNEL_V2},
    {"cuGraphExecKernelNodeSetParams", 0, 12000, SET_EXEC_KERNEL, SET_EXEC_KERNEL},
    {"cuGraphExecKernelNodeSetParams", 12000, 0, SET_EXEC_KERNEL_V2, SET_EXEC_KERNEL_V2},
    {"cuGraphAddNode", 0, 12030, ADD_NODE, ADD_NODE},
    {"cuGraphAddNode", 12030, 13040, ADD_NODE_V2, ADD_NODE_V2},
    {"cuGraphAddNode", 13040, 0, ADD_NODE_V3, ADD_NODE_V3},
    {"cuGraphNodeSetParams", 0, 13040, SET_NODE, SET_NODE},
    {"cuGraphNodeSetParams", 13040, 0, SET_NODE_V2, SET_NODE_V2},
    {"cuGraphExecNodeSetParams", 0, 0, SET_EXEC_NODE, SET_EXEC_NODE},
    {"cuGraphKernelNodeSetAttribute", 0, 0, NODE_SET_ATTRIBUTE, NODE_SET_ATTRIBUTE},
    {"cuGraphLaunch", 0, 0, GRAPH_LAUNCH, GRAPH_LAUNCH_PTSZ},
    {"cuGraphDestroy", 0, 0, GRAPH_DESTROY, GRAPH_DESTROY},
    {"cuGraphDestroyNode", 0, 0, NODE_DESTROY, NODE_DESTROY},
};

/* The symbol behind a pointer from the driver, or -1 when it is none of ours. */
static int symbol_for(const char *name, const void *answer, int version, uint64_t flags) {
    for (unsigned at = 0; at < sizeof looked_up / sizeof *looked_up; at++) {
        if (strcmp(looked_up[at].name, name) != 0 || version < looked_up[at].from ||
            (looked_up[at].before && version >= looked_up[at].before))
            continue;
        int plain = looked_up[at].symbol, per_thread = looked_up[at].per_thread;
        if (answer == atomic_load(&cuda.real[per_thread]))
            return per_thread;
        if (answer == atomic_load(&cuda.real[plain]))
            return plain;
        return flags & MW_PER_THREAD_STREAM ? per_thread : plain;
    }
    return -1;
}

/* A function of a newer CUDA may take other arguments, unless its pointer is the one we know. */
static bool same_as_known(const void *answer, mw_result result, const void *known) {
    return result == MW_SUCCESS && known == answer;
}

static void *ours(const char *name, void *answer, int version, uint64_t flags, bool known) {
    int symbol = symbol_for(name, answer, version, flags);
    if (symbol < 0)
        return answer;
    if (!known) {
        receipts_note("%s of CUDA %d is not known to this shim: its launches are left as they are", name, version);
        return answer;
    }
    return symbols_replace(&cuda, symbol, answer);
}

mw_result cuGetProcAddress(const char *name, void **answer, int version, uint64_t flags) {
    mw_address_v1 real = REAL(mw_address_v1, ADDRESS);
    mw_result result = real ? real(name, answer, version, flags) : MW_NOT_FOUND;
    if (result != MW_SUCCESS || !name || !answer || !*answer || !shim_on())
        return result;
    void *other = NULL;
    bool known = version <= MW_NEWEST_CUDA ||
                 same_as_known(*answer, real(name, &other, MW_NEWEST_CUDA, flags), other);
    *answer = ours(name, *answer, version, flags, known);
    return result;
}

mw_result cuGetProcAddress_v2(const char *name, void **answer, int version, uint64_t flags, int *status) {
    mw_address_v2 real = REAL(mw_address_v2, ADDRESS_V2);
    mw_result result = real ? real(name, answer, version, flags, status) : MW_NOT_FOUND;
    if (result != MW_SUCCESS || !name || !answer || !*answer || !shim_on())
        return result;
    void *other = NULL;
    int found = 0;
    bool known = version <= MW_NEWEST_CUDA ||
                 same_as_known(*answer, real(name, &other, MW_NEWEST_CUDA, flags, &found), other);
    *answer = ours(name, *answer, version, flags, known);
    return result;
}

/* --- the table ----------------------------------------------------------------------------- */

#define REPLACED(symbol, name) [symbol] = {#name, (void *)name}
#define CALLED(symbol, name) [symbol] = {name, NULL}

static const struct symbol symbols[CUDA_SYMBOLS] = {
    REPLACED(LAUNCH, cuLaunchKernel),
    REPLACED(LAUNCH_PTSZ, cuLaunchKernel_ptsz),
    REPLACED(EX, cuLaunchKernelEx),
    REPLACED(EX_PTSZ, cuLaunchKernelEx_ptsz),
    REPLACED(COOPERATIVE, cuLaunchCooperativeKernel),
    REPLACED(COOPERATIVE_PTSZ, cuLaunchCooperativeKernel_ptsz),
    REPLACED(ADDRESS, cuGetProcAddress),
    REPLACED(ADDRESS_V2, cuGetProcAddress_v2),
    REPLACED(FUNCTION_SET, cuFuncSetAttribute),
    REPLACED(KERNEL_SET, cuKernelSetAttribute),
    REPLACED(MODULE_UNLOAD, cuModuleUnload),
    REPLACED(LIBRARY_UNLOAD, cuLibraryUnload),
    REPLACED(CONTEXT_DESTROY, cuCtxDestroy),
    REPLACED(CONTEXT_DESTROY_V2, cuCtxDestroy_v2),
    REPLACED(PRIMARY_RESET, cuDevicePrimaryCtxReset),
    REPLACED(PRIMARY_RESET_V2, cuDevicePrimaryCtxReset_v2),
    REPLACED(PRIMARY_RELEASE, cuDevicePrimaryCtxRelease),
    REPLACED(PRIMARY_RELEASE_V2, cuDevicePrimaryCtxRelease_v2),
    REPLACED(MODULE_LOAD, cuModuleLoad),
    REPLACED(MODULE_LOAD_DATA, cuModuleLoadData),
    REPLACED(MODULE_LOAD_DATA_EX, cuModuleLoadDataEx),
    REPLACED(LIBRARY_LOAD_DATA, cuLibraryLoadData),
    REPLACED(LIBRARY_LOAD_FILE, cuLibraryLoadFromFile),
    REPLACED(LIBRARY_KERNEL, cuLibraryGetKernel),
    REPLACED(LIBRARY_KERNELS, cuLibraryEnumerateKernels),
    REPLACED(ACTIVE, cuOccupancyMaxActiveBlocksPerMultiprocessor),
    REPLACED(ACTIVE_FLAGS, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags),
    REPLACED(AVAILABLE, cuOccupancyAvailableDynamicSMemPerBlock),
    REPLACED(POTENTIAL, cuOccupancyMaxPotentialBlockSize),
    REPLACED(POTENTIAL_FLAGS, cuOccupancyMaxPotentialBlockSizeWithFlags),
    REPLACED(ACTIVE_CLUSTERS, cuOccupancyMaxActiveClusters),
    REPLACED(POTENTIAL_CLUSTER, cuOccupancyMaxPotentialClusterSize),
    REPLACED(ADD_KERNEL, cuGraphAddKernelNode),
    REPLACED(ADD_KERNEL_V2, cuGraphAddKernelNode_v2),
    REPLACED(SET_KERNEL, cuGraphKernelNodeSetParams),
    REPLACED(SET_KERNEL_V2, cuGraphKernelNodeSetParams_v2),
    REPLACED(SET_EXEC_KERNEL, cuGraphExecKernelNodeSetParams),
    REPLACED(SET_EXEC_KERNEL_V2, cuGraphExecKernelNodeSetParams_v2),
    REPLACED(ADD_NODE, cuGraphAddNode),
    REPLACED(ADD_NODE_V2, cuGraphAddNode_v2),
    REPLACED(ADD_NODE_V3, cuGraphAddNode_v3),
    REPLACED(SET_NODE, cuGraphNodeSetParams),
    REPLACED(SET_NODE_V2, cuGraphNodeSetParams_v2),
    REPLACED(SET_EXEC_NODE, cuGraphExecNodeSetParams),
    REPLACED(NODE_SET_ATTRIBUTE, cuGraphKernelNodeSetAttribute),
    REPLACED(GRAPH_LAUNCH, cuGraphLaunch),
    REPLACED(GRAPH_LAUNCH_PTSZ, cuGraphLaunch_ptsz),
    REPLACED(GRAPH_DESTROY, cuGraphDestroy),
    REPLACED(NODE_DESTROY, cuGraphDestroyNode),
    CALLED(NODE_GET, "cuGraphKernelNodeGetParams_v2"),
    CALLED(NODE_GET_ATTRIBUTE, "cuGraphKernelNodeGetAttribute"),
    CALLED(FUNCTION_NAME, "cuFuncGetName"),
    CALLED(KERNEL_NAME, "cuKernelGetName"),
    CALLED(FUNCTION_GET, "cuFuncGetAttribute"),
    CALLED(KERNEL_GET, "cuKernelGetAttribute"),
    CALLED(FUNCTION_MODULE, "cuFuncGetModule"),
    CALLED(KERNEL_LIBRARY, "cuKernelGetLibrary"),
    CALLED(KERNEL_FUNCTION, "cuKernelGetFunction"),
    CALLED(CURRENT, "cuCtxGetCurrent"),
    CALLED(CURRENT_DEVICE, "cuCtxGetDevice"),
    CALLED(DEVICE_GET, "cuDeviceGetAttribute"),
    CALLED(PRIORITY_RANGE, "cuCtxGetStreamPriorityRange"),
};

struct api cuda = {.library = "libcuda.so.1", .stem = "libcuda.so", .symbols = symbols, .count = CUDA_SYMBOLS};
