/* The CUDA driver functions that the shim replaces (up to LIBRARY_KERNELS) or calls. */
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
    AVAILABLE,
    ACTIVE,
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

/* Whether to launch with `given` bytes of dynamic shared memory. If not, the launch is already counted. */
bool cuda_pad(struct kernel *kernel, uint32_t threads, uint32_t asked, uint32_t *given);

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

#endif
