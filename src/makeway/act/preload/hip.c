/* The HIP counterpart: pads dynamic LDS. HIP launches take no priority; the stream decides. */
#include "hip_driver.h"

#include <stdio.h>
#include <string.h>

/* --- decisions ----------------------------------------------------------------------------- */

static const char *name_of(const void *function, bool host) {
    if (host) {
        mw_hip_host_name name = REAL(mw_hip_host_name, HOST_NAME);
        return name ? name(function, NULL) : NULL;
    }
    mw_hip_name name = REAL(mw_hip_name, NAME);
    return name ? name(function) : NULL;
}

/* What the device has left beside the kernel's static LDS; HIP needs no opt-in. */
static uint32_t limit_of(void *function, bool host) {
    struct mw_hip_attributes facts = {0};
    int bytes = 0;
    mw_hip_host_get host_get = REAL(mw_hip_host_get, HOST_GET);
    mw_hip_function_get get = REAL(mw_hip_function_get, FUNCTION_GET);
    if (host && host_get && host_get(&facts, function) == MW_SUCCESS)
        bytes = facts.max_dynamic_bytes;
    else if (!host && get && get(&bytes, MW_HIP_MAX_DYNAMIC_BYTES, function) != MW_SUCCESS)
        bytes = 0;
    return bytes > 0 ? (uint32_t)bytes : 0;
}

static struct kernel *learn(void *function, bool host) {
    struct kernel made = {.function = function, .handle = host};
    atomic_store(&made.generation, atomic_load(&shim_generation));
    const char *name = name_of(function, host);
    bool comm = name && rules_comm(&shim_rules, name);
    made.set = atomic_load(&shim_set); /* after the generation: a set that comes later makes this decision stale */
    const struct rule *rule = comm || !name ? NULL : rules_find(&shim_rules, made.set, name, NULL);
    made.slot = receipts_slot(name ? name : "(no name)", comm, made.set);
    snprintf(made.name, sizeof made.name, "%s", name ? name : "(no name)");
    if (comm && shim_rules.set[made.set].raise_comm_priority) {
        made.decided = SKIP;
        receipts_reason(made.slot, "HIP launches take no priority: it has to come from the stream");
    } else if (rule) {
        made.decided = rule->kind == RULE_PAD ? PAD : FIT;
        made.value = rule->value;
        atomic_store(&made.limit, limit_of(function, host));
    }
    if (shim_rules.any_code)
        receipts_note("rules that name code are for CUDA only: HIP does not say which module a function is from");
    atomic_store(&made.action, made.decided);
    shim_log("%s: %s", made.name, made.decided == LEAVE ? "left as it is" : made.decided == SKIP ? "skipped" : "padded");
    return kernels_add(&made);
}

struct kernel *hip_kernel(const void *function, bool host) {
    struct kernel *kernel = kernels_find((void *)function, NULL);
    if (kernel && atomic_load_explicit(&kernel->generation, memory_order_acquire) ==
                      atomic_load_explicit(&shim_generation, memory_order_relaxed))
        return kernel;
    return function && shim_on() ? learn((void *)function, host) : NULL;
}

static int active(const struct kernel *kernel, uint32_t threads, uint32_t bytes) {
    mw_hip_active ask = REAL(mw_hip_active, kernel->handle ? HOST_ACTIVE : ACTIVE);
    int blocks = 0;
    return ask && ask(&blocks, kernel->function, (int)threads, bytes) == MW_SUCCESS ? blocks : 0;
}

/* The most dynamic LDS that keeps the wanted residency; 0 when no more blocks fit anyway. HIP has no call for it. */
static uint32_t fitting(const struct kernel *kernel, uint32_t threads) {
    int wanted = (int)kernel->value;
    uint32_t low = 0, high = atomic_load(&kernel->limit);
    if (active(kernel, threads, 0) <= wanted)
        return 0;
    while (low < high) { /* the most bytes at which `wanted` blocks still fit */
        uint32_t middle = low + (high - low + 1) / 2;
        if (active(kernel, threads, middle) >= wanted)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool pad(struct kernel *kernel, uint32_t threads, size_t asked, size_t *given) {
    uint32_t limit = atomic_load_explicit(&kernel->limit, memory_order_relaxed);
    *given = asked + kernel->value;
    if (atomic_load_explicit(&kernel->action, memory_order_relaxed) == FIT) {
        uint64_t fitted = atomic_load_explicit(&kernel->fitted, memory_order_relaxed);
        if (fitted >> 32 != threads) {
            fitted = (uint64_t)threads << 32 | fitting(kernel, threads);
            atomic_store_explicit(&kernel->fitted, fitted, memory_order_relaxed);
        }
        *given = (uint32_t)fitted;
        if (*given <= asked) {
            kernels_skip(kernel, SAID_RESIDENT, "no more blocks than asked for reside on a CU already");
            return false;
        }
    }
    if (*given <= limit)
        return true;
    char words[128];
    snprintf(words, sizeof words, "%zu + %u bytes of dynamic shared memory are above the limit of %u", asked,
             kernel->value, limit);
    kernels_skip(kernel, SAID_LIMIT, words);
    return false;
}

bool hip_padded(struct kernel *kernel, uint64_t threads, size_t asked, size_t *given) {
    switch (kernel ? atomic_load_explicit(&kernel->action, memory_order_relaxed) : LEAVE) {
    case PAD:
    case FIT:
        return pad(kernel, (uint32_t)threads, asked, given);
    case SKIP:
        receipts_count(kernel->slot, SKIPPED); /* the reason is recorded */
        return false;
    default:
        if (kernel)
            receipts_count(kernel->slot, PLAIN);
        return false;
    }
}

mw_result hip_settled(struct kernel *kernel, const char *what, mw_result refusal, mw_result repeat) {
    if (repeat == MW_SUCCESS)
        kernels_drop(kernel, what, refusal);
    else
        receipts_count(kernel->slot, PLAIN);
    return repeat;
}

mw_result hip_counted(const struct kernel *kernel, size_t asked, size_t given, mw_result result) {
    receipts_padded(kernel->slot, (uint32_t)asked, (uint32_t)given);
    return result;
}

/* One launch function; CALL(bytes) calls the real one. */
#define LAUNCH(type, symbol, threads, host)                                            \
    type real = REAL(type, symbol);                                                    \
    if (!real)                                                                         \
        return MW_NOT_FOUND;                                                           \
    struct kernel *kernel = hip_kernel(function, host);                                \
    size_t given;                                                                      \
    if (!hip_padded(kernel, threads, smem, &given))                                    \
        return CALL(smem);                                                             \
    mw_result result = CALL(given);                                                    \
    return refused(result) ? hip_settled(kernel, "a padded launch", result, CALL(smem)) \
                           : hip_counted(kernel, smem, given, result)

/* --- what programs call -------------------------------------------------------------------- */

EXPORT mw_result hipModuleLaunchKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters,
                                       void **extra) {
#define CALL(bytes) real(function, gx, gy, gz, bx, by, bz, (uint32_t)(bytes), stream, parameters, extra)
    LAUNCH(mw_launch, MODULE_LAUNCH, (uint64_t)bx * by * bz, false);
#undef CALL
}

EXPORT mw_result hipExtModuleLaunchKernel(void *function, DIMENSIONS, size_t smem, void *stream, void **parameters,
                                          void **extra, void *start, void *stop, uint32_t flags) {
#define CALL(bytes) real(function, gx, gy, gz, bx, by, bz, bytes, stream, parameters, extra, start, stop, flags)
    LAUNCH(mw_hip_ext_launch, EXT_MODULE_LAUNCH, (uint64_t)bx * by * bz, false);
#undef CALL
}

EXPORT mw_result hipLaunchKernel(const void *function, struct mw_dim3 grid, struct mw_dim3 block, void **arguments,
                                 size_t smem, void *stream) {
#define CALL(bytes) real(function, grid, block, arguments, bytes, stream)
    LAUNCH(mw_hip_host_launch, HOST_LAUNCH, (uint64_t)block.x * block.y * block.z, true);
#undef CALL
}

EXPORT mw_result hipExtLaunchKernel(const void *function, struct mw_dim3 grid, struct mw_dim3 block, void **arguments,
                                    size_t smem, void *stream, void *start, void *stop, int flags) {
#define CALL(bytes) real(function, grid, block, arguments, bytes, stream, start, stop, flags)
    LAUNCH(mw_hip_host_ext_launch, HOST_EXT_LAUNCH, (uint64_t)block.x * block.y * block.z, true);
#undef CALL
}

/* With a stream per thread instead of the default one. */
EXPORT mw_result hipLaunchKernel_spt(const void *function, struct mw_dim3 grid, struct mw_dim3 block, void **arguments,
                                     size_t smem, void *stream) {
#define CALL(bytes) real(function, grid, block, arguments, bytes, stream)
    LAUNCH(mw_hip_host_launch, HOST_LAUNCH_SPT, (uint64_t)block.x * block.y * block.z, true);
#undef CALL
}

/* The older name of hipExtModuleLaunchKernel: gx to gz count threads. */
EXPORT mw_result hipHccModuleLaunchKernel(void *function, DIMENSIONS, size_t smem, void *stream, void **parameters,
                                          void **extra, void *start, void *stop) {
#define CALL(bytes) real(function, gx, gy, gz, bx, by, bz, bytes, stream, parameters, extra, start, stop)
    LAUNCH(mw_hip_hcc_launch, HCC_LAUNCH, (uint64_t)bx * by * bz, false);
#undef CALL
}

void hip_count_cooperative(struct kernel *kernel) {
    if (kernel && atomic_load(&kernel->action) == LEAVE)
        receipts_count(kernel->slot, PLAIN);
    else if (kernel)
        kernels_skip(kernel, SAID_COOPERATIVE, SAYS_COOPERATIVE);
}

EXPORT mw_result hipModuleLaunchCooperativeKernel(void *function, DIMENSIONS, uint32_t smem, void *stream,
                                                  void **parameters) {
    mw_launch_cooperative real = REAL(mw_launch_cooperative, MODULE_COOPERATIVE);
    if (!real)
        return MW_NOT_FOUND;
    hip_count_cooperative(hip_kernel(function, false));
    return real(function, gx, gy, gz, bx, by, bz, smem, stream, parameters);
}

typedef mw_result (*mw_hip_host_cooperative)(const void *, struct mw_dim3, struct mw_dim3, void **, uint32_t, void *);

EXPORT mw_result hipLaunchCooperativeKernel(const void *function, struct mw_dim3 grid, struct mw_dim3 block,
                                            void **arguments, uint32_t smem, void *stream) {
    mw_hip_host_cooperative real = REAL(mw_hip_host_cooperative, HOST_COOPERATIVE);
    if (!real)
        return MW_NOT_FOUND;
    hip_count_cooperative(hip_kernel(function, true));
    return real(function, grid, block, arguments, smem, stream);
}

static bool together(const struct mw_attribute *attributes, uint32_t count) {
    for (uint32_t at = 0; attributes && at < count; at++)
        if (attributes[at].id == MW_ATTRIBUTE_COOPERATIVE && attributes[at].value.number)
            return true;
    return false;
}

EXPORT mw_result hipDrvLaunchKernelEx(const struct mw_config *config, void *function, void **parameters, void **extra) {
    mw_launch_ex plain = REAL(mw_launch_ex, EX_LAUNCH);
    if (!plain || !config)
        return plain ? plain(config, function, parameters, extra) : MW_NOT_FOUND;
    if (together(config->attributes, config->attribute_count)) {
        hip_count_cooperative(hip_kernel(function, false));
        return plain(config, function, parameters, extra);
    }
    struct mw_config changed = *config;
    size_t smem = config->smem_bytes;
#define CALL(bytes) (changed.smem_bytes = (uint32_t)(bytes), real(&changed, function, parameters, extra))
    LAUNCH(mw_launch_ex, EX_LAUNCH, (uint64_t)config->block[0] * config->block[1] * config->block[2], false);
#undef CALL
}

EXPORT mw_result hipLaunchKernelExC(const struct mw_hip_config *config, const void *function, void **arguments) {
    mw_hip_host_launch_ex plain = REAL(mw_hip_host_launch_ex, HOST_EX_LAUNCH);
    if (!plain || !config)
        return plain ? plain(config, function, arguments) : MW_NOT_FOUND;
    if (together(config->attributes, config->attribute_count)) {
        hip_count_cooperative(hip_kernel(function, true));
        return plain(config, function, arguments);
    }
    struct mw_hip_config changed = *config;
    size_t smem = config->smem_bytes;
#define CALL(bytes) (changed.smem_bytes = (bytes), real(&changed, function, arguments))
    LAUNCH(mw_hip_host_launch_ex, HOST_EX_LAUNCH, (uint64_t)config->block.x * config->block.y * config->block.z, true);
#undef CALL
}

#define GRAPH_LAUNCHES(name, symbol)                                     \
    EXPORT mw_result name(void *executable, void *stream) {              \
        mw_two_handles real = REAL(mw_two_handles, symbol);              \
        if (shim_on())                                                   \
            receipts_graph_launched();                                   \
        return real ? real(executable, stream) : MW_NOT_FOUND;           \
    }
GRAPH_LAUNCHES(hipGraphLaunch, GRAPH_LAUNCH)
GRAPH_LAUNCHES(hipGraphLaunch_spt, GRAPH_LAUNCH_SPT)

EXPORT mw_result hipModuleUnload(void *module) {
    mw_one_handle real = REAL(mw_one_handle, MODULE_UNLOAD);
    mw_result result = real ? real(module) : MW_NOT_FOUND;
    kernels_unloaded();
    return result;
}

EXPORT mw_result hipGetProcAddress(const char *name, void **answer, int version, uint64_t flags, int *status) {
    mw_address_v2 real = REAL(mw_address_v2, ADDRESS);
    mw_result result = real ? real(name, answer, version, flags, status) : MW_NOT_FOUND;
    if (result != MW_SUCCESS || !name || !answer || !*answer || !shim_on())
        return result;
    for (int at = 0; at < hip.count; at++)
        if (hip.symbols[at].wrapper && strcmp(hip.symbols[at].name, name) == 0)
            *answer = symbols_replace(&hip, at, *answer);
    return result;
}

#define REPLACED(symbol, name) [symbol] = {#name, (void *)name}
#define CALLED(symbol, name) [symbol] = {name, NULL}

static const struct symbol symbols[HIP_SYMBOLS] = {
    REPLACED(MODULE_LAUNCH, hipModuleLaunchKernel),
    REPLACED(EXT_MODULE_LAUNCH, hipExtModuleLaunchKernel),
    REPLACED(HOST_LAUNCH, hipLaunchKernel),
    REPLACED(HOST_EXT_LAUNCH, hipExtLaunchKernel),
    REPLACED(HOST_LAUNCH_SPT, hipLaunchKernel_spt),
    REPLACED(HCC_LAUNCH, hipHccModuleLaunchKernel),
    REPLACED(EX_LAUNCH, hipDrvLaunchKernelEx),
    REPLACED(HOST_EX_LAUNCH, hipLaunchKernelExC),
    REPLACED(MODULE_COOPERATIVE, hipModuleLaunchCooperativeKernel),
    REPLACED(HOST_COOPERATIVE, hipLaunchCooperativeKernel),
    REPLACED(MODULE_UNLOAD, hipModuleUnload),
    REPLACED(ADDRESS, hipGetProcAddress),
    REPLACED(ADD_KERNEL, hipGraphAddKernelNode),
    REPLACED(SET_KERNEL, hipGraphKernelNodeSetParams),
    REPLACED(SET_EXEC_KERNEL, hipGraphExecKernelNodeSetParams),
    REPLACED(ADD_NODE, hipGraphAddNode),
    REPLACED(SET_NODE, hipGraphNodeSetParams),
    REPLACED(SET_EXEC_NODE, hipGraphExecNodeSetParams),
    REPLACED(NODE_SET_ATTRIBUTE, hipGraphKernelNodeSetAttribute),
    REPLACED(GRAPH_LAUNCH, hipGraphLaunch),
    REPLACED(GRAPH_LAUNCH_SPT, hipGraphLaunch_spt),
    REPLACED(GRAPH_DESTROY, hipGraphDestroy),
    REPLACED(NODE_DESTROY, hipGraphDestroyNode),
    CALLED(NODE_GET, "hipGraphKernelNodeGetParams"),
    CALLED(NODE_GET_ATTRIBUTE, "hipGraphKernelNodeGetAttribute"),
    CALLED(NAME, "hipKernelNameRef"),
    CALLED(HOST_NAME, "hipKernelNameRefByPtr"),
    CALLED(FUNCTION_GET, "hipFuncGetAttribute"),
    CALLED(HOST_GET, "hipFuncGetAttributes"),
    CALLED(ACTIVE, "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"),
    CALLED(HOST_ACTIVE, "hipOccupancyMaxActiveBlocksPerMultiprocessor"),
};

struct api hip = {.library = "libamdhip64.so", .stem = "libamdhip64.so", .symbols = symbols, .count = HIP_SYMBOLS};
