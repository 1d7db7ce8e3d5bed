/* A scripted libcuda.so.1 for tests of the launch shim: kernels with any name, and behaviour no real driver shows on
 * demand. Every launch is one line in the file that DRIVER_RECORD names. It computes nothing.
 *
 * DRIVER_REFUSE=pad:N     every N-th launch with more than DRIVER_ASKED bytes of shared memory fails with DRIVER_ERROR
 * DRIVER_REFUSE=limit     the limit of dynamic shared memory cannot be raised
 * DRIVER_REFUSE=priority  launches with a priority fail with DRIVER_ERROR
 * DRIVER_REFUSE=carve     launches with a carve-out fail with DRIVER_ERROR, as in drivers older than CUDA 12.4
 * Compiled with NO_NAMES it is older than CUDA 12.3, with NO_EX older than 11.6.
 *
 * A mode of shared memory makes the limit of dynamic shared memory count for nothing (cuda.h of CUDA 13.3,
 * CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES). A cluster needs room for all its blocks at once. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"

enum { FUNCTIONS = 512, OPT_IN = 232448, STATIC = 1024, REGISTERS_ALLOW = 8, SM_BYTES = 233472, SMS = 132, GPC = 16 };
enum { DEFAULT_BYTES = 49152, SETTINGS = 32 };

struct function {
    char name[128];
    bool is_kernel, used;
    void *module;
    _Atomic int limit[2]; /* a CUkernel has one per device */
    _Atomic int settings[SETTINGS]; /* the other attributes that were set */
};

static struct function functions[FUNCTIONS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int context = 1; /* context N is on device N - 1 */
static _Atomic int padded_launches;
static _Atomic uint64_t launches;

static const char *setting(const char *name) {
    const char *found = getenv(name);
    return found ? found : "";
}

static void record(const char *line) {
    static _Atomic int file = -2;
    if (file == -2) {
        const char *path = getenv("DRIVER_RECORD");
        file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    if (file >= 0 && write(file, line, strlen(line)) < 0)
        abort();
}

/* A refused launch stays refused, however it is repeated, until one that asks for less. */
static bool refuses_pad(uint32_t smem, int every) {
    static _Atomic bool refusing;
    if (smem <= (uint32_t)atoi(setting("DRIVER_ASKED")))
        refusing = false;
    else if (!refusing)
        refusing = atomic_fetch_add(&padded_launches, 1) % every == every - 1;
    return refusing;
}

static bool refuses(uint32_t smem, bool priority, bool carve) {
    const char *refuse = setting("DRIVER_REFUSE");
    if (strncmp(refuse, "pad:", 4) == 0)
        return refuses_pad(smem, atoi(refuse + 4));
    return (strcmp(refuse, "priority") == 0 && priority) || (strcmp(refuse, "carve") == 0 && carve);
}

static int limit_of(const struct function *function, int device, int mode) {
    if (!mode)
        mode = function->settings[MW_FUNCTION_SMEM_MODE];
    return mode == 0 ? function->limit[device] : (mode == MW_SMEM_PORTABLE ? DEFAULT_BYTES : OPT_IN) - STATIC;
}

static mw_result launch(const char *through, struct function *function, const struct mw_config *config) {
    char line[512];
    int priority = 0, cluster = 0, carve = MW_NO_CARVE_OUT, mode = 0;
    bool has_priority = false;
    for (uint32_t at = 0; at < config->attribute_count; at++) {
        int number = config->attributes[at].value.number;
        switch (config->attributes[at].id) {
        case MW_ATTRIBUTE_PRIORITY: has_priority = true, priority = number; break;
        case MW_ATTRIBUTE_CLUSTER: cluster = 1; break;
        case MW_ATTRIBUTE_CARVE_OUT: carve = number; break;
        case MW_ATTRIBUTE_SMEM_MODE: mode = number; break;
        }
    }
    if (function < functions || function >= functions + FUNCTIONS || !function->used)
        return 400;
    int limit = limit_of(function, function->is_kernel ? context - 1 : 0, mode);
    if (config->grid[0] == 0 || config->smem_bytes > (uint32_t)limit)
        return MW_INVALID_VALUE;
    if (refuses(config->smem_bytes, has_priority, carve != MW_NO_CARVE_OUT))
        return atoi(setting("DRIVER_ERROR"));
    atomic_fetch_add(&launches, 1);
    if (getenv("DRIVER_RECORD")) {
        snprintf(line, sizeof line, "%s %s %u %d %d %d %u %d\n", through, function->name, config->smem_bytes,
                 has_priority, priority, cluster, config->attribute_count, carve);
        record(line);
    }
    return MW_SUCCESS;
}

#define DIMENSIONS uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz
#define CONFIG {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .smem_bytes = smem, .stream = stream}
#define PLAIN_LAUNCH(name)                                                                                     \
    mw_result name(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters, void **extra) { \
        struct mw_config config = CONFIG;                                                                      \
        (void)parameters, (void)extra;                                                                         \
        return launch(#name, function, &config);                                                               \
    }
PLAIN_LAUNCH(cuLaunchKernel)
PLAIN_LAUNCH(cuLaunchKernel_ptsz)
PLAIN_LAUNCH(cuLaunchKernel_of_the_future)

mw_result cuLaunchCooperativeKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters) {
    struct mw_config config = CONFIG;
    (void)parameters;
    return launch("cuLaunchCooperativeKernel", function, &config);
}

#ifndef NO_EX
mw_result cuLaunchKernelEx(const struct mw_config *config, void *function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return launch("cuLaunchKernelEx", function, config);
}

mw_result cuLaunchKernelEx_ptsz(const struct mw_config *config, void *function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return launch("cuLaunchKernelEx_ptsz", function, config);
}
#endif

/* --- modules: "image" is nothing but a handle; the lowest free function is always the next one given out --- */

mw_result cuModuleLoadData(void **module, const void *image) {
    *module = (void *)image;
    return MW_SUCCESS;
}

static mw_result new_function(void **out, void *module, const char *name, bool is_kernel) {
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < FUNCTIONS && functions[at].used)
        at++;
    if (at < FUNCTIONS) {
        functions[at].used = true;
        functions[at].is_kernel = is_kernel;
        functions[at].module = module;
        functions[at].limit[0] = functions[at].limit[1] = DEFAULT_BYTES - STATIC;
        memset(functions[at].settings, 0, sizeof functions[at].settings);
        functions[at].settings[MW_FUNCTION_CARVE_OUT] = MW_NO_CARVE_OUT;
        int blocks = 0; /* "gemm_in_4" is built for clusters of 4 */
        const char *built = strstr(name, "_in_");
        if (built && sscanf(built, "_in_%d", &blocks) == 1)
            for (int side = 0; side < 3; side++)
                functions[at].settings[MW_FUNCTION_CLUSTER_WIDTH + side] = side ? 1 : blocks;
        snprintf(functions[at].name, sizeof functions[at].name, "%s", name);
        *out = &functions[at];
    }
    pthread_mutex_unlock(&lock);
    return at < FUNCTIONS ? MW_SUCCESS : MW_OUT_OF_MEMORY;
}

mw_result cuModuleGetFunction(void **out, void *module, const char *name) {
    return new_function(out, module, name, false);
}

mw_result cuLibraryGetKernel(void **out, void *library, const char *name) {
    return new_function(out, library, name, true);
}

mw_result cuModuleUnload(void *module) {
    pthread_mutex_lock(&lock);
    for (int at = 0; at < FUNCTIONS; at++)
        if (functions[at].module == module)
            functions[at].used = false;
    pthread_mutex_unlock(&lock);
    return MW_SUCCESS;
}

/* --- questions --- */

#ifndef NO_NAMES
mw_result cuFuncGetName(const char **name, struct function *function) {
    *name = function->name;
    return function->is_kernel ? 400 : MW_SUCCESS;
}

mw_result cuKernelGetName(const char **name, struct function *function) {
    *name = function->name;
    return function->is_kernel ? MW_SUCCESS : 400;
}
#endif

mw_result cuFuncGetModule(void **module, struct function *function) {
    *module = function->module;
    return MW_SUCCESS;
}

static mw_result get(int *value, int id, struct function *function, int device) {
    if (id < 0 || id >= SETTINGS)
        return MW_INVALID_VALUE;
    *value = id == MW_FUNCTION_STATIC_BYTES        ? STATIC
             : id == MW_FUNCTION_MAX_DYNAMIC_BYTES ? function->limit[device]
                                                   : function->settings[id];
    return MW_SUCCESS;
}

static mw_result set(struct function *function, int id, int value, int device) {
    if (id == MW_FUNCTION_MAX_DYNAMIC_BYTES && strcmp(setting("DRIVER_REFUSE"), "limit") == 0)
        return MW_INVALID_VALUE;
    if (id == MW_FUNCTION_MAX_DYNAMIC_BYTES && (value < 0 || value > OPT_IN - STATIC))
        return MW_INVALID_VALUE;
    if (id == MW_FUNCTION_MAX_DYNAMIC_BYTES)
        function->limit[device] = value;
    else if (id >= 0 && id < SETTINGS)
        function->settings[id] = value;
    return MW_SUCCESS;
}

mw_result cuFuncGetAttribute(int *value, int id, struct function *function) {
    return get(value, id, function, 0);
}

mw_result cuKernelGetAttribute(int *value, int id, struct function *function, int device) {
    return get(value, id, function, device);
}

mw_result cuFuncSetAttribute(struct function *function, int id, int value) {
    return function->is_kernel ? 400 : set(function, id, value, 0);
}

mw_result cuKernelSetAttribute(int id, int value, struct function *function, int device) {
    return function->is_kernel ? set(function, id, value, device) : 400;
}

mw_result cuKernelGetFunction(void **out, void *kernel) {
    *out = kernel;
    return MW_SUCCESS;
}

mw_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct function *function, int threads,
                                                      size_t dynamic) {
    (void)threads;
    int by_smem = (int)(SM_BYTES / (dynamic + STATIC + 1024));
    *blocks = by_smem < REGISTERS_ALLOW ? by_smem : REGISTERS_ALLOW;
    if (dynamic > (size_t)limit_of(function, function->is_kernel ? context - 1 : 0, 0))
        *blocks = 0;
    return MW_SUCCESS;
}

/* Clusters are placed inside one GPC. */
mw_result cuOccupancyMaxActiveClusters(int *clusters, struct function *function, const struct mw_config *config) {
    int cluster = function->settings[MW_FUNCTION_CLUSTER_WIDTH], blocks = 0;
    for (uint32_t at = 0; at < config->attribute_count; at++)
        if (config->attributes[at].id == MW_ATTRIBUTE_CLUSTER)
            cluster = (int)config->attributes[at].value.sides[0];
    cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, (int)config->block[0], config->smem_bytes);
    /* "tight" kernels find two free SMs in a GPC, whatever the device has */
    int sms = strncmp(function->name, "tight", 5) == 0 ? 2 : GPC;
    *clusters = cluster > 0 ? blocks * sms / cluster * (SMS / GPC) : 0;
    return cluster > 0 ? MW_SUCCESS : MW_INVALID_VALUE;
}

mw_result cuOccupancyMaxPotentialBlockSize(int *grid, int *block, struct function *function, mw_bytes_of smem_of,
                                           size_t smem, int most) {
    int blocks = 0;
    *block = most > 0 && most < 1024 ? most : 1024;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, *block, smem_of ? smem_of(*block) : smem);
    *grid = blocks * SMS;
    return MW_SUCCESS;
}

mw_result cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, struct function *function, int blocks, int threads) {
    (void)threads;
    size_t most = SM_BYTES / (size_t)blocks / 128 * 128 - 1024 - STATIC;
    size_t allowed = (size_t)limit_of(function, function->is_kernel ? context - 1 : 0, 0);
    *bytes = most < allowed ? most : allowed;
    return MW_SUCCESS;
}

mw_result cuCtxSetCurrent(void *which) {
    context = (int)(intptr_t)which;
    return MW_SUCCESS;
}

mw_result cuCtxGetCurrent(void **out) {
    *out = (void *)(intptr_t)context;
    return MW_SUCCESS;
}

mw_result cuCtxGetDevice(int *device) {
    *device = context - 1;
    return MW_SUCCESS;
}

mw_result cuDeviceGetAttribute(int *value, int id, int device) {
    (void)device;
    *value = id == MW_DEVICE_OPT_IN_BYTES    ? OPT_IN
             : id == MW_DEVICE_DEFAULT_BYTES ? DEFAULT_BYTES
             : id == MW_DEVICE_SMS           ? SMS
                                             : 0;
    return MW_SUCCESS;
}

mw_result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return MW_SUCCESS;
}

mw_result cuGraphLaunch(void *executable, void *stream) {
    (void)executable, (void)stream;
    return MW_SUCCESS;
}

uint64_t driver_launches(void) {
    return atomic_load(&launches);
}

mw_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    static const struct {
        const char *name;
        void *plain, *per_thread;
    } known[] = {
        {"cuLaunchKernel", (void *)cuLaunchKernel, (void *)cuLaunchKernel_ptsz},
#ifndef NO_EX
        {"cuLaunchKernelEx", (void *)cuLaunchKernelEx, (void *)cuLaunchKernelEx_ptsz},
#endif
        {"cuGetProcAddress", (void *)cuGetProcAddress_v2, (void *)cuGetProcAddress_v2},
        {"cuModuleGetFunction", (void *)cuModuleGetFunction, (void *)cuModuleGetFunction},
    };
    *out = NULL;
    if (status)
        *status = 1;
    for (unsigned at = 0; at < sizeof known / sizeof *known; at++)
        if (strcmp(known[at].name, name) == 0)
            *out = flags & MW_PER_THREAD_STREAM ? known[at].per_thread : known[at].plain;
    if (*out && version > MW_NEWEST_CUDA && strcmp(name, "cuLaunchKernel") == 0)
        *out = (void *)cuLaunchKernel_of_the_future;
    if (*out && status)
        *status = 0;
    return *out ? MW_SUCCESS : MW_NOT_FOUND;
}

mw_result cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
