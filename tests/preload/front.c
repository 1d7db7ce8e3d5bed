/* A libcuda.so.1 that forwards everything the client uses to libcuda_real.so, found by dlsym under the same names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "abi.h"

static void *inner(const char *name) {
    return dlsym(dlopen("libcuda_real.so", RTLD_NOW), name);
}

mw_result cuLaunchKernel(void *function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                         uint32_t smem, void *stream, void **parameters, void **extra) {
    return ((mw_launch)inner("cuLaunchKernel"))(function, gx, gy, gz, bx, by, bz, smem, stream, parameters, extra);
}

mw_result cuLaunchCooperativeKernel(void) {
    return MW_NOT_SUPPORTED;
}

mw_result cuModuleGetFunction(void **out, void *module, const char *name) {
    return ((mw_get_kernel)inner("cuModuleGetFunction"))(out, module, name);
}
