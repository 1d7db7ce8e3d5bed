/* Does not compile unless abi.h says what HIP's header says. */
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stddef.h>

#include "abi.h"

#define SAME(what) _Static_assert(what, #what)
#define SAME_PLACE(ours, theirs) \
    SAME(offsetof(struct mw_hip_attributes, ours) == offsetof(struct hipFuncAttributes, theirs))

SAME(sizeof(struct mw_dim3) == sizeof(dim3));
SAME(sizeof(struct mw_hip_attributes) == sizeof(struct hipFuncAttributes));
SAME_PLACE(max_dynamic_bytes, maxDynamicSharedSizeBytes);
SAME_PLACE(static_bytes, sharedSizeBytes);
SAME(sizeof(struct mw_hip_config) == sizeof(hipLaunchConfig_t));
SAME(offsetof(struct mw_hip_config, smem_bytes) == offsetof(hipLaunchConfig_t, dynamicSmemBytes));
SAME(offsetof(struct mw_hip_config, attributes) == offsetof(hipLaunchConfig_t, attrs));
SAME(offsetof(struct mw_hip_config, attribute_count) == offsetof(hipLaunchConfig_t, numAttrs));
SAME(sizeof(struct mw_config) == sizeof(HIP_LAUNCH_CONFIG));
SAME(offsetof(struct mw_config, smem_bytes) == offsetof(HIP_LAUNCH_CONFIG, sharedMemBytes));
SAME(offsetof(struct mw_config, attributes) == offsetof(HIP_LAUNCH_CONFIG, attrs));
SAME(sizeof(struct mw_attribute) == sizeof(hipLaunchAttribute));
SAME(MW_ATTRIBUTE_COOPERATIVE == (int)hipLaunchAttributeCooperative);
SAME(MW_HIP_MAX_DYNAMIC_BYTES == (int)HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(MW_INVALID_VALUE == (int)hipErrorInvalidValue);
SAME(MW_OUT_OF_MEMORY == (int)hipErrorOutOfMemory);
SAME(MW_LAUNCH_OUT_OF_RESOURCES == (int)hipErrorLaunchOutOfResources);
SAME(MW_NOT_SUPPORTED == (int)hipErrorNotSupported);
SAME(MW_NOT_FOUND == (int)hipErrorNotFound);
#define SAME_NODE(ours, theirs) SAME(offsetof(struct mw_hip_kernel_node, ours) == offsetof(hipKernelNodeParams, theirs))
SAME(sizeof(struct mw_hip_kernel_node) == sizeof(hipKernelNodeParams));
SAME_NODE(block, blockDim);
SAME_NODE(function, func);
SAME_NODE(smem_bytes, sharedMemBytes);
SAME(sizeof(struct mw_hip_node) == sizeof(hipGraphNodeParams));
SAME(offsetof(struct mw_hip_node, kernel) == offsetof(hipGraphNodeParams, kernel));
SAME(sizeof(union mw_attribute_value) == sizeof(hipKernelNodeAttrValue));
SAME(MW_NODE_KERNEL == (int)hipGraphNodeTypeKernel);
