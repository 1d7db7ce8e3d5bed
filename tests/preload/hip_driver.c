/* A scripted libamdhip64.so for tests of the launch shim; DRIVER_RECORD and DRIVER_REFUSE=pad:N as in driver.c.
 * A function is its name: handles and host pointers alike point to it. 64 KiB of LDS per workgroup and per CU. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"

enum { LDS = 65536, STATIC = 512 };

static mw_result launch(const char *through, const char *name, size_t smem) {
    static int padded;
    const char *refuse = getenv("DRIVER_REFUSE"), *path = getenv("DRIVER_RECORD");
    char line[256];
    if (smem > LDS - STATIC)
        return MW_INVALID_VALUE;
    if (refuse && strncmp(refuse, "pad:", 4) == 0 && smem > 4096 && ++padded % atoi(refuse + 4) == 0)
        return MW_LAUNCH_OUT_OF_RESOURCES;
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file >= 0) {
        int length = snprintf(line, sizeof line, "%s %s %zu 0 0 0 0\n", through, name, smem);
        if (write(file, line, (size_t)length) != length)
            abort();
        close(file);
    }
    return MW_SUCCESS;
}

#define DIMENSIONS uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz
#define UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)stream

mw_result hipModuleLaunchKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters,
                                void **extra) {
    UNUSED, (void)parameters, (void)extra;
    return launch("hipModuleLaunchKernel", function, smem);
}

mw_result hipExtModuleLaunchKernel(void *function, DIMENSIONS, size_t smem, void *stream, void **parameters,
                                   void **extra, void *start, void *stop, uint32_t flags) {
    UNUSED, (void)parameters, (void)extra, (void)start, (void)stop;
    return flags == 7 ? launch("hipExtModuleLaunchKernel", function, smem) : 400; /* the last argument arrived */
}

mw_result hipLaunchKernel(const void *function, struct mw_dim3 grid, struct mw_dim3 block, void **arguments,
                          size_t smem, void *stream) {
    (void)arguments, (void)stream;
    return grid.z == 3 && block.x == 64 ? launch("hipLaunchKernel", function, smem) : 400;
}

mw_result hipExtLaunchKernel(const void *function, struct mw_dim3 grid, struct mw_dim3 block, void **arguments,
                             size_t smem, void *stream, void *start, void *stop, int flags) {
    (void)grid, (void)block, (void)arguments, (void)stream, (void)start, (void)stop;
    return flags == 7 ? launch("hipExtLaunchKernel", function, smem) : 400;
}

mw_result hipLaunchKernel_spt(const void *function, struct mw_dim3 grid, struct mw_dim3 block, void **arguments,
                              size_t smem, void *stream) {
    (void)arguments, (void)stream;
    return grid.z == 3 && block.x == 64 ? launch("hipLaunchKernel_spt", function, smem) : 400;
}

mw_result hipHccModuleLaunchKernel(void *function, DIMENSIONS, size_t smem, void *stream, void **parameters, void **extra,
                                   void *start, void *stop) {
    UNUSED, (void)parameters, (void)extra, (void)start;
    return stop == (void *)7 ? launch("hipHccModuleLaunchKernel", function, smem) : 400;
}

mw_result hipDrvLaunchKernelEx(const struct mw_config *config, void *function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return config->stream == (void *)7 ? launch("hipDrvLaunchKernelEx", function, config->smem_bytes) : 400;
}

mw_result hipLaunchKernelExC(const struct mw_hip_config *config, const void *function, void **arguments) {
    (void)arguments;
    return config->stream == (void *)7 ? launch("hipLaunchKernelExC", function, config->smem_bytes) : 400;
}

mw_result hipModuleLaunchCooperativeKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters) {
    UNUSED, (void)parameters;
    return launch("hipModuleLaunchCooperativeKernel", function, smem);
}

const char *hipKernelNameRef(const void *function) {
    return function;
}

const char *hipKernelNameRefByPtr(const void *function, void *stream) {
    (void)stream;
    return function;
}

mw_result hipFuncGetAttribute(int *value, int id, void *function) {
    (void)function;
    *value = id == MW_HIP_MAX_DYNAMIC_BYTES ? LDS - STATIC : 0;
    return MW_SUCCESS;
}

mw_result hipFuncGetAttributes(struct mw_hip_attributes *facts, const void *function) {
    (void)function;
    memset(facts, 0, sizeof *facts);
    facts->max_dynamic_bytes = LDS - STATIC;
    return MW_SUCCESS;
}

static mw_result active(int *blocks, size_t dynamic) {
    size_t each = (dynamic + STATIC + 511) / 512 * 512;
    *blocks = LDS / each < 8 ? (int)(LDS / each) : 8;
    return MW_SUCCESS;
}

mw_result hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t dynamic) {
    (void)function, (void)threads;
    return active(blocks, dynamic);
}

mw_result hipOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t dynamic) {
    (void)function, (void)threads;
    return active(blocks, dynamic);
}

mw_result hipGetProcAddress(const char *name, void **out, int version, uint64_t flags, int *status) {
    (void)version, (void)flags, (void)status;
    *out = strcmp(name, "hipModuleLaunchKernel") == 0 ? (void *)hipModuleLaunchKernel : NULL;
    return *out ? MW_SUCCESS : MW_NOT_FOUND;
}
