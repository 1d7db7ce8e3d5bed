/* A HIP program as the compiler leaves it, linked to the runtime: pairs of LAUNCH NAME. Prints each result.
 * LAUNCH: module, ext-module, host, host-ext, host-spt, hcc, ex, host-ex, cooperative, ex-cooperative, looked-up.
 * All ask for 16 bytes of LDS. "rules SET" in place of a launch chooses a rule set of the shim. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define DIMENSIONS uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t

mw_result hipModuleLaunchKernel(void *, DIMENSIONS, uint32_t, void *, void **, void **);
mw_result hipExtModuleLaunchKernel(void *, DIMENSIONS, size_t, void *, void **, void **, void *, void *, uint32_t);
mw_result hipLaunchKernel(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *);
mw_result hipExtLaunchKernel(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *, void *, void *, int);
mw_result hipModuleLaunchCooperativeKernel(void *, DIMENSIONS, uint32_t, void *, void **);
mw_result hipGetProcAddress(const char *, void **, int, uint64_t, int *);

mw_result hipLaunchKernel_spt(const void *, struct mw_dim3, struct mw_dim3, void **, size_t, void *);
mw_result hipHccModuleLaunchKernel(void *, DIMENSIONS, size_t, void *, void **, void **, void *, void *);
mw_result hipDrvLaunchKernelEx(const struct mw_config *, void *, void **, void **);
mw_result hipLaunchKernelExC(const struct mw_hip_config *, const void *, void **);

static mw_result launch(const char *how, char *kernel) {
    int (*use)(uint32_t) = strcmp(how, "rules") == 0 ? (int (*)(uint32_t))dlsym(RTLD_DEFAULT, "makeway_use_rules") : NULL;
    if (use)
        return use((uint32_t)atoi(kernel));
    struct mw_dim3 grid = {1, 2, 3}, block = {64, 1, 1};
    struct mw_attribute together = {.id = MW_ATTRIBUTE_COOPERATIVE, .value.number = 1};
    struct mw_config config = {.grid = {1, 1, 1}, .block = {64, 1, 1}, .smem_bytes = 16, .stream = (void *)7};
    struct mw_hip_config host = {.grid = grid, .block = block, .smem_bytes = 16, .stream = (void *)7};
    if (strcmp(how, "ex-cooperative") == 0)
        config.attributes = &together, config.attribute_count = 1;
    if (strncmp(how, "ex", 2) == 0 && strcmp(how, "ext-module") != 0)
        return hipDrvLaunchKernelEx(&config, kernel, NULL, NULL);
    if (strcmp(how, "host-ex") == 0)
        return hipLaunchKernelExC(&host, kernel, NULL);
    if (strcmp(how, "host-spt") == 0)
        return hipLaunchKernel_spt(kernel, grid, block, NULL, 16, NULL);
    if (strcmp(how, "hcc") == 0)
        return hipHccModuleLaunchKernel(kernel, 64, 1, 1, 64, 1, 1, 16, NULL, NULL, NULL, NULL, (void *)7);
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
