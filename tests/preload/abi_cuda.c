/* Does not compile unless abi.h says what cuda.h says. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stddef.h>

#include "abi.h"

#define SAME(what) _Static_assert(what, #what)
#define SAME_SIZE(ours, theirs) SAME(sizeof(ours) == sizeof(theirs))
#define SAME_PLACE(ours, theirs) SAME(offsetof(struct mw_config, ours) == offsetof(CUlaunchConfig, theirs))

SAME(CUDA_VERSION >= 13000);
SAME(CUDA_VERSION <= MW_NEWEST_CUDA);
SAME_SIZE(struct mw_config, CUlaunchConfig);
SAME_PLACE(grid, gridDimX);
SAME_PLACE(block, blockDimX);
SAME_PLACE(smem_bytes, sharedMemBytes);
SAME_PLACE(stream, hStream);
SAME_PLACE(attributes, attrs);
SAME_PLACE(attribute_count, numAttrs);
SAME_SIZE(struct mw_attribute, CUlaunchAttribute);
SAME(offsetof(struct mw_attribute, value) == offsetof(CUlaunchAttribute, value));
SAME(offsetof(CUlaunchAttributeValue, priority) == 0 && sizeof(((CUlaunchAttributeValue *)0)->priority) == 4);
SAME(offsetof(CUlaunchAttributeValue, cooperative) == 0 && sizeof(((CUlaunchAttributeValue *)0)->cooperative) == 4);
SAME_SIZE(mw_result, CUresult);
SAME_SIZE(int, CUdevice);
SAME(MW_SUCCESS == (int)CUDA_SUCCESS);
SAME(MW_INVALID_VALUE == (int)CUDA_ERROR_INVALID_VALUE);
SAME(MW_OUT_OF_MEMORY == (int)CUDA_ERROR_OUT_OF_MEMORY);
SAME(MW_NOT_FOUND == (int)CUDA_ERROR_NOT_FOUND);
SAME(MW_LAUNCH_OUT_OF_RESOURCES == (int)CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME(MW_NOT_SUPPORTED == (int)CUDA_ERROR_NOT_SUPPORTED);
SAME(MW_PER_THREAD_STREAM == (int)CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
SAME(MW_ATTRIBUTE_COOPERATIVE == (int)CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(MW_ATTRIBUTE_CLUSTER == (int)CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(MW_ATTRIBUTE_CARVE_OUT == (int)CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(offsetof(CUlaunchAttributeValue, sharedMemCarveout) == 0 && sizeof(((CUlaunchAttributeValue *)0)->sharedMemCarveout) == 4);
SAME(offsetof(CUlaunchAttributeValue, clusterDim) == 0 && sizeof(((CUlaunchAttributeValue *)0)->clusterDim) == 12);
#if CUDA_VERSION >= 13030 /* shared-memory modes */
SAME(MW_ATTRIBUTE_SMEM_MODE == (int)CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE);
SAME(offsetof(CUlaunchAttributeValue, sharedMemoryMode) == 0 && sizeof(((CUlaunchAttributeValue *)0)->sharedMemoryMode) == 4);
SAME(MW_FUNCTION_SMEM_MODE == (int)CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE);
SAME(MW_DEVICE_OVERSIZED_BYTES == (int)CU_DEVICE_ATTRIBUTE_MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK);
SAME(MW_SMEM_PORTABLE == (int)CU_SHARED_MEMORY_MODE_REQUIRE_PORTABLE);
SAME(MW_SMEM_NON_PORTABLE == (int)CU_SHARED_MEMORY_MODE_ALLOW_NON_PORTABLE);
#endif
SAME(MW_NO_CARVE_OUT == (int)CU_SHAREDMEM_CARVEOUT_DEFAULT);
SAME(MW_MOST_SHARED == (int)CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
SAME(MW_ATTRIBUTE_PRIORITY == (int)CU_LAUNCH_ATTRIBUTE_PRIORITY);
SAME(MW_FUNCTION_STATIC_BYTES == (int)CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(MW_FUNCTION_MAX_DYNAMIC_BYTES == (int)CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(MW_FUNCTION_CARVE_OUT == (int)CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME(MW_FUNCTION_CLUSTER_WIDTH == (int)CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
SAME(MW_FUNCTION_CLUSTER_WIDTH + 1 == (int)CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
SAME(MW_FUNCTION_CLUSTER_WIDTH + 2 == (int)CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
SAME(MW_DEVICE_DEFAULT_BYTES == (int)CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME(MW_DEVICE_SMS == (int)CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(MW_DEVICE_OPT_IN_BYTES == (int)CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

#define SAME_NODE(ours, theirs) SAME(offsetof(struct mw_kernel_node, ours) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, theirs))
SAME_SIZE(struct mw_kernel_node, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_NODE(function, func);
SAME_NODE(grid, gridDimX);
SAME_NODE(block, blockDimX);
SAME_NODE(smem_bytes, sharedMemBytes);
SAME_NODE(kernel, kern);
SAME_NODE(context, ctx);
SAME(sizeof(CUDA_KERNEL_NODE_PARAMS_v1) == offsetof(struct mw_kernel_node, kernel));
SAME_SIZE(struct mw_node, CUgraphNodeParams);
SAME(offsetof(struct mw_node, kernel) == offsetof(CUgraphNodeParams, kernel));
SAME_SIZE(union mw_attribute_value, CUkernelNodeAttrValue);
SAME(MW_NODE_KERNEL == (int)CU_GRAPH_NODE_TYPE_KERNEL);

/* Every function, called with our idea of its arguments. */
#define P (void *)0
void call_all(void) {
    cuLaunchKernel((CUfunction)P, 1u, 1u, 1u, 1u, 1u, 1u, 1u, (CUstream)P, (void **)P, (void **)P);
    cuLaunchKernelEx((const CUlaunchConfig *)P, (CUfunction)P, (void **)P, (void **)P);
    cuLaunchCooperativeKernel((CUfunction)P, 1u, 1u, 1u, 1u, 1u, 1u, 1u, (CUstream)P, (void **)P);
    cuGetProcAddress_v2((const char *)P, (void **)P, 1, (cuuint64_t)1, (CUdriverProcAddressQueryResult *)P);
    cuFuncSetAttribute((CUfunction)P, (CUfunction_attribute)8, 1);
    cuKernelSetAttribute((CUfunction_attribute)8, 1, (CUkernel)P, (CUdevice)1);
    cuFuncGetAttribute((int *)P, (CUfunction_attribute)8, (CUfunction)P);
    cuKernelGetAttribute((int *)P, (CUfunction_attribute)8, (CUkernel)P, (CUdevice)1);
    cuFuncGetName((const char **)P, (CUfunction)P);
    cuKernelGetName((const char **)P, (CUkernel)P);
    cuFuncGetModule((CUmodule *)P, (CUfunction)P);
    cuKernelGetLibrary((CUlibrary *)P, (CUkernel)P);
    cuKernelGetFunction((CUfunction *)P, (CUkernel)P);
    cuModuleUnload((CUmodule)P);
    cuLibraryUnload((CUlibrary)P);
    cuCtxDestroy_v2((CUcontext)P);
    cuDevicePrimaryCtxReset_v2((CUdevice)1);
    cuDevicePrimaryCtxRelease_v2((CUdevice)1);
    cuModuleLoad((CUmodule *)P, (const char *)P);
    cuModuleLoadData((CUmodule *)P, P);
    cuModuleLoadDataEx((CUmodule *)P, P, 1u, (CUjit_option *)P, (void **)P);
    cuLibraryLoadData((CUlibrary *)P, P, (CUjit_option *)P, (void **)P, 1u, (CUlibraryOption *)P, (void **)P, 1u);
    cuLibraryLoadFromFile((CUlibrary *)P, (const char *)P, (CUjit_option *)P, (void **)P, 1u, (CUlibraryOption *)P,
                          (void **)P, 1u);
    cuLibraryGetKernel((CUkernel *)P, (CUlibrary)P, (const char *)P);
    cuLibraryEnumerateKernels((CUkernel *)P, 1u, (CUlibrary)P);
    cuCtxGetCurrent((CUcontext *)P);
    cuCtxGetDevice((CUdevice *)P);
    cuDeviceGetAttribute((int *)P, (CUdevice_attribute)97, (CUdevice)1);
    cuCtxGetStreamPriorityRange((int *)P, (int *)P);
    cuOccupancyAvailableDynamicSMemPerBlock((size_t *)P, (CUfunction)P, 1, 1);
    cuOccupancyMaxActiveBlocksPerMultiprocessor((int *)P, (CUfunction)P, 1, (size_t)1);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags((int *)P, (CUfunction)P, 1, (size_t)1, 1u);
    cuOccupancyMaxPotentialBlockSize((int *)P, (int *)P, (CUfunction)P, (CUoccupancyB2DSize)P, (size_t)1, 1);
    cuOccupancyMaxPotentialBlockSizeWithFlags((int *)P, (int *)P, (CUfunction)P, (CUoccupancyB2DSize)P, (size_t)1, 1, 1u);
    cuOccupancyMaxActiveClusters((int *)P, (CUfunction)P, (const CUlaunchConfig *)P);
    cuOccupancyMaxPotentialClusterSize((int *)P, (CUfunction)P, (const CUlaunchConfig *)P);
    cuGraphAddKernelNode_v2((CUgraphNode *)P, (CUgraph)P, (const CUgraphNode *)P, (size_t)1, (const CUDA_KERNEL_NODE_PARAMS_v2 *)P);
    cuGraphKernelNodeGetParams_v2((CUgraphNode)P, (CUDA_KERNEL_NODE_PARAMS_v2 *)P);
    cuGraphKernelNodeSetParams_v2((CUgraphNode)P, (const CUDA_KERNEL_NODE_PARAMS_v2 *)P);
    cuGraphExecKernelNodeSetParams_v2((CUgraphExec)P, (CUgraphNode)P, (const CUDA_KERNEL_NODE_PARAMS_v2 *)P);
    cuGraphAddNode_v2((CUgraphNode *)P, (CUgraph)P, (const CUgraphNode *)P, (const CUgraphEdgeData *)P, (size_t)1,
                      (CUgraphNodeParams *)P);
    cuGraphNodeSetParams((CUgraphNode)P, (CUgraphNodeParams *)P);
    cuGraphExecNodeSetParams((CUgraphExec)P, (CUgraphNode)P, (CUgraphNodeParams *)P);
    cuGraphKernelNodeGetAttribute((CUgraphNode)P, (CUkernelNodeAttrID)2, (CUkernelNodeAttrValue *)P);
    cuGraphKernelNodeSetAttribute((CUgraphNode)P, (CUkernelNodeAttrID)2, (const CUkernelNodeAttrValue *)P);
    cuGraphDestroy((CUgraph)P);
    cuGraphDestroyNode((CUgraphNode)P);
}
