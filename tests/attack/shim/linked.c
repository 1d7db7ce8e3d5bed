/* A program that the linker bound to the driver: launches "gemm" as often as its first argument says, through the
 * function it is bound to or, as its second says, the one that dlsym finds ("default", "self"). With "also-by-handle" it
 * first launches once through the function that dlsym finds in the driver itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

mw_result cuModuleGetFunction(void **function, void *module, const char *name);
mw_result cuLaunchKernel(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                         void **);

int main(int count, char **words) {
    void *function = NULL;
    mw_launch launch = cuLaunchKernel, first = NULL;
    const char *how = count > 2 ? words[2] : "";
    if (strcmp(how, "also-by-handle") == 0)
        first = (mw_launch)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
    else if (*how)
        launch = (mw_launch)dlsym(strcmp(how, "self") ? RTLD_DEFAULT : dlopen(NULL, RTLD_NOW), "cuLaunchKernel");
    cuModuleGetFunction(&function, "module", "gemm");
    if (first)
        printf("%d\n", first(function, 1, 1, 1, 128, 1, 1, 64, NULL, NULL, NULL));
    for (int at = 0; at < (count > 1 ? atoi(words[1]) : 1); at++)
        printf("%d\n", launch(function, 1, 1, 1, 128, 1, 1, 64, NULL, NULL, NULL));
    return 0;
}
