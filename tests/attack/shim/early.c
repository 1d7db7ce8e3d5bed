/* A library that launches a kernel in its constructor, which runs before the shim's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "abi.h"

mw_result cuModuleGetFunction(void **function, void *module, const char *name);
mw_result cuLaunchKernel(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                         void **);

__attribute__((constructor)) static void launch(void) {
    void *function = NULL;
    mw_launch found = (mw_launch)dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    cuModuleGetFunction(&function, "module", "gemm_early");
    if (!found || cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 64, NULL, NULL, NULL) ||
        found(function, 1, 1, 1, 128, 1, 1, 64, NULL, NULL, NULL))
        abort();
}
