/* A library that stands between a program and the driver, as tracers do: counts launches and passes them on. It finds
 * the driver behind it by RTLD_NEXT or, compiled with BY_HANDLE, in the library by name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "abi.h"

#ifdef BY_HANDLE
#define DRIVER dlopen("libcuda.so.1", RTLD_LAZY)
#else
#define DRIVER RTLD_NEXT
#endif

static int traced;

mw_result cuLaunchKernel(void *function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                         uint32_t smem, void *stream, void **parameters, void **extra) {
    static mw_launch next;
    traced++;
    if (!next)
        next = (mw_launch)dlsym(DRIVER, "cuLaunchKernel");
    return next ? next(function, gx, gy, gz, bx, by, bz, smem, stream, parameters, extra) : -1;
}

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "traced %d\n", traced);
}
