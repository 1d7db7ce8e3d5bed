/* The parts of the CUDA driver API and of HIP that the shim needs, so that it builds where neither is installed.
 * tests/preload checks every line against the vendors' headers. */
#ifndef MAKEWAY_ABI_H
#define MAKEWAY_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int mw_result; /* CUresult and hipError_t */

enum {
    MW_SUCCESS = 0,
    MW_INVALID_VALUE = 1,
    MW_OUT_OF_MEMORY = 2,
    MW_NOT_FOUND = 500,
    MW_LAUNCH_OUT_OF_RESOURCES = 701,
    MW_NOT_SUPPORTED = 801,
    MW_NEWEST_CUDA = 13040, /* the newest version checked against this file */
    MW_PER_THREAD_STREAM = 2, /* flag of cuGetProcAddress */
    MW_ATTRIBUTE_COOPERATIVE = 2,
    MW_ATTRIBUTE_CLUSTER = 4,
    MW_ATTRIBUTE_PRIORITY = 8,
    MW_ATTRIBUTE_CARVE_OUT = 14,
    MW_ATTRIBUTE_SMEM_MODE = 18,
    MW_FUNCTION_STATIC_BYTES = 1,
    MW_FUNCTION_MAX_DYNAMIC_BYTES = 8,
    MW_FUNCTION_CARVE_OUT = 9,
    MW_FUNCTION_CLUSTER_WIDTH = 11, /* height and depth follow */
    MW_FUNCTION_SMEM_MODE = 17,
    MW_DEVICE_DEFAULT_BYTES = 8,
    MW_DEVICE_SMS = 16,
    MW_DEVICE_OPT_IN_BYTES = 97,
    MW_DEVICE_OVERSIZED_BYTES = 150,
    MW_SMEM_PORTABLE = 1, /* shared-memory modes; 0: the function's limit counts */
    MW_SMEM_NON_PORTABLE = 2,
    MW_NO_CARVE_OUT = -1,
    MW_MOST_SHARED = 100,
    MW_HIP_MAX_DYNAMIC_BYTES = 8,
    MW_NODE_KERNEL = 0, /* type of a graph node */
};

union mw_attribute_value { /* CUlaunchAttributeValue */
    int32_t number;
    uint32_t sides[3]; /* of a cluster */
    char bytes[64];
    uint64_t aligned;
};

struct mw_attribute { /* CUlaunchAttribute */
    uint32_t id;
    uint32_t gap;
    union mw_attribute_value value;
};

struct mw_config { /* CUlaunchConfig */
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t smem_bytes;
    void *stream;
    struct mw_attribute *attributes;
    uint32_t attribute_count;
};

struct mw_kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2; version 1 ends before `kernel` */
    void *function;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t smem_bytes;
    void **parameters;
    void **extra;
    void *kernel; /* where there is no function */
    void *context;
};

struct mw_node { /* CUgraphNodeParams */
    uint32_t type;
    int32_t reserved[3];
    union {
        struct mw_kernel_node kernel;
        int64_t others[29];
    };
    int64_t end;
};

_Static_assert(sizeof(struct mw_kernel_node) == 72 && sizeof(struct mw_node) == 256, "CUgraphNodeParams");
_Static_assert(sizeof(struct mw_attribute) == 72, "CUlaunchAttribute is an id and 64 bytes of value");
_Static_assert(sizeof(struct mw_config) == 56, "CUlaunchConfig");

typedef mw_result (*mw_launch)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *,
                               void **, void **);
typedef mw_result (*mw_launch_ex)(const struct mw_config *, void *, void **, void **);
typedef mw_result (*mw_launch_cooperative)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                                           void *, void **);
typedef mw_result (*mw_address_v1)(const char *, void **, int, uint64_t);
typedef mw_result (*mw_address_v2)(const char *, void **, int, uint64_t, int *);
typedef mw_result (*mw_name_of)(const char **, void *);
typedef mw_result (*mw_handle_of)(void **, void *);
typedef mw_result (*mw_one_handle)(void *);
typedef mw_result (*mw_two_handles)(void *, void *);
typedef mw_result (*mw_one_number)(int);
typedef mw_result (*mw_current)(void **);
typedef mw_result (*mw_number)(int *);
typedef mw_result (*mw_two_numbers)(int *, int *);
typedef mw_result (*mw_device_attribute)(int *, int, int);
typedef mw_result (*mw_function_get)(int *, int, void *);
typedef mw_result (*mw_function_set)(void *, int, int);
typedef mw_result (*mw_kernel_get)(int *, int, void *, int);
typedef mw_result (*mw_kernel_set)(int, int, void *, int);
typedef mw_result (*mw_available)(size_t *, void *, int, int);
typedef mw_result (*mw_active)(int *, void *, int, size_t);
typedef mw_result (*mw_active_flags)(int *, void *, int, size_t, uint32_t);
typedef size_t (*mw_bytes_of)(int);
typedef mw_result (*mw_potential)(int *, int *, void *, mw_bytes_of, size_t, int);
typedef mw_result (*mw_potential_flags)(int *, int *, void *, mw_bytes_of, size_t, int, uint32_t);
typedef mw_result (*mw_clusters)(int *, void *, const struct mw_config *);
typedef mw_result (*mw_load)(void **, const void *);
typedef mw_result (*mw_load_ex)(void **, const void *, uint32_t, void *, void **);
typedef mw_result (*mw_load_library)(void **, const void *, void *, void **, uint32_t, void *, void **, uint32_t);

typedef mw_result (*mw_add_kernel_node)(void **, void *, void *const *, size_t, const void *);
typedef mw_result (*mw_get_kernel_node)(void *, struct mw_kernel_node *);
typedef mw_result (*mw_set_kernel_node)(void *, const void *);
typedef mw_result (*mw_set_exec_kernel)(void *, void *, const void *);
typedef mw_result (*mw_add_node)(void **, void *, void *const *, size_t, struct mw_node *);
typedef mw_result (*mw_add_node_v2)(void **, void *, void *const *, const void *, size_t, struct mw_node *);
typedef mw_result (*mw_set_node)(void *, struct mw_node *);
typedef mw_result (*mw_set_exec_node)(void *, void *, struct mw_node *);
typedef mw_result (*mw_get_node_attribute)(void *, uint32_t, union mw_attribute_value *);
typedef mw_result (*mw_set_node_attribute)(void *, uint32_t, const union mw_attribute_value *);

typedef mw_result (*mw_get_kernel)(void **, void *, const char *);
typedef mw_result (*mw_get_kernels)(void **, uint32_t, void *);

struct mw_dim3 { /* HIP's dim3, passed by value */
    uint32_t x, y, z;
};

struct mw_hip_attributes { /* hipFuncAttributes */
    int binary_version;
    int cache_mode;
    size_t const_bytes;
    size_t local_bytes;
    int max_dynamic_bytes;
    int max_threads;
    int registers;
    int carve_out;
    int ptx_version;
    size_t static_bytes;
};

struct mw_hip_config { /* hipLaunchConfig_t; HIP_LAUNCH_CONFIG is laid out as mw_config */
    struct mw_dim3 grid;
    struct mw_dim3 block;
    size_t smem_bytes;
    void *stream;
    struct mw_attribute *attributes;
    uint32_t attribute_count;
};

struct mw_hip_kernel_node { /* hipKernelNodeParams */
    struct mw_dim3 block;
    void **extra;
    void *function;
    struct mw_dim3 grid;
    void **parameters;
    uint32_t smem_bytes;
};

struct mw_hip_node { /* hipGraphNodeParams */
    uint32_t type;
    int32_t reserved[3];
    union {
        struct mw_hip_kernel_node kernel;
        int64_t others[29];
    };
    int64_t end;
};

typedef mw_result (*mw_hip_get_kernel_node)(void *, struct mw_hip_kernel_node *);
typedef mw_result (*mw_hip_add_node)(void **, void *, void *const *, size_t, struct mw_hip_node *);
typedef mw_result (*mw_hip_set_node)(void *, struct mw_hip_node *);
typedef mw_result (*mw_hip_set_exec_node)(void *, void *, struct mw_hip_node *);
typedef mw_result (*mw_hip_host_launch_ex)(const struct mw_hip_config *, const void *, void **);
typedef mw_result (*mw_hip_hcc_launch)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, void *,
                                       void **, void **, void *, void *);
typedef const char *(*mw_hip_name)(const void *);
typedef const char *(*mw_hip_host_name)(const void *, void *);
typedef mw_result (*mw_hip_function_get)(int *, int, void *);
typedef mw_result (*mw_hip_host_get)(struct mw_hip_attributes *, const void *);
typedef mw_result (*mw_hip_active)(int *, const void *, int, size_t);
typedef mw_result (*mw_hip_ext_launch)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, void *,
                                       void **, void **, void *, void *, uint32_t);
typedef mw_result (*mw_hip_host_launch)(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *);
typedef mw_result (*mw_hip_host_ext_launch)(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *, void *,
                                            void *, int);

#endif
