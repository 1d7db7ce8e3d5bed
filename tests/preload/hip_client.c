/* A HIP program as the compiler leaves it, linked to the runtime: pairs of LAUNCH NAME. Prints each result.
 * LAUNCH: module, ext-module, host, host-ext, cooperative, looked-up. All ask for 16 bytes of LDS. */
#include <stdio.h>
#include <string.h>

#include "abi.h"

#define DIMENSIONS uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t

mw_result hipModuleLaunchKernel(void *, DIMENSIONS, uint32_t, void *, void **, void **);
mw_result hipExtModuleLaunchKernel(void *, DIMENSIONS, size_t, void *, void **, void **, void *, void *, uint32_t);
mw_result hipLaunchKernel(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *);
mw_result hipExtLaunchKernel(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *, void *, void *, int);
mw_result hipModuleLaunchCooperativeKernel(void *, DIMENSIONS, uint32_t, void *, void **);
mw_result hipGetProcAddress(const char *, void **, int, uint64_t, int *);

static mw_result launch(const char *how, char *kernel) {
    struct mw_dim3 grid = {1, 2, 3}, block = {64, 1, 1};
    if (strcmp(how, "module") == 0)
        return hipModuleLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 16, NULL, NULL, NULL);
    if (strcmp(how, "ext-module") == 0)
        return hipExtModuleLaunchKernel(kernel, 64, 1, 1, 64, 1, 1, 16, NULL, NULL, NULL, NULL, NULL, 7);
    if (strcmp(how, "host") == 0)
        return hipLaunchKernel(kernel, grid, block, NULL, 16, NULL);
    if (strcmp(how, "host-ext") == 0)
        return hipExtLaunchKernel(kernel, grid, block, NULL, 16, NULL, NULL, NULL, 7);
    if (strcmp(how, "cooperative") == 0)
        return hipModuleLaunchCooperativeKernel(kernel, 1, 1, 1, 64, 1, 1, 16, NULL, NULL);
    void *found = NULL;
    mw_result result = hipGetProcAddress("hipModuleLaunchKernel", &found, 60000, 0, NULL);
    return result ? result : ((mw_launch)found)(kernel, 1, 1, 1, 64, 1, 1, 16, NULL, NULL, NULL);
}

/* One kernel per name: a function is its name to the driver, and the same name the same pointer. */
static char *kernel_named(char **words, const char *name) {
    int at = 2;
    while (strcmp(words[at], name) != 0)
        at += 2;
    return words[at];
}

int main(int count, char **words) {
    for (int at = 1; at + 1 < count; at += 2)
        printf("%d\n", launch(words[at], kernel_named(words, words[at + 1])));
    return 0;
}
