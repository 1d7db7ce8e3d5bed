/* A program that the linker bound to the driver: launches "gemm" as often as its argument says. */
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"

mw_result cuModuleGetFunction(void **function, void *module, const char *name);
mw_result cuLaunchKernel(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                         void **);

int main(int count, char **words) {
    void *function = NULL;
    cuModuleGetFunction(&function, "module", "gemm");
    for (int at = 0; at < (count > 1 ? atoi(words[1]) : 1); at++)
        printf("%d\n", cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 64, NULL, NULL, NULL));
    return 0;
}
