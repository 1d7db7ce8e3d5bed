/* The functions that programs call instead of the CUDA driver's. */
#include "cuda_driver.h"

#include <string.h>

/* A launch has eleven arguments; a macro spares copying them between our functions. */
#define HOT static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))

enum { MOST_ATTRIBUTES = 32 };

static const char SAYS_OWN_PRIORITY[] = "the program set a priority itself";
static const char SAYS_ATTRIBUTES[] = "too many launch attributes to add one";

mw_result cuda_settled(struct kernel *kernel, const char *what, uint32_t epoch, mw_result refusal, mw_result repeat) {
    if (repeat != MW_SUCCESS) {
        receipts_count(kernel->slot, PLAIN);
    } else if (epoch != atomic_load(&shim_epoch)) { /* the program changed the limit during this launch */
        receipts_count(kernel->slot, REFUSED);
        receipts_reason(kernel->slot, "the driver refused %s once (error %d), while the program set its limit", what,
                        refusal);
    } else {
        kernels_drop(kernel, what, refusal);
    }
    return repeat;
}

/* --- cuLaunchKernelEx ---------------------------------------------------------------------- */

static const struct mw_attribute *attribute(const struct mw_config *config, uint32_t id) {
    for (uint32_t at = 0; config->attributes && at < config->attribute_count; at++)
        if (config->attributes[at].id == id)
            return &config->attributes[at];
    return NULL;
}

/* `config` with one attribute more. */
static void extend(struct mw_config *longer, struct mw_attribute *attributes, const struct mw_config *config, uint32_t id,
                   int number) {
    uint32_t count = config->attribute_count;
    *longer = *config;
    memset(&attributes[count], 0, sizeof *attributes);
    if (count)
        memcpy(attributes, config->attributes, count * sizeof *attributes);
    attributes[count].id = id;
    attributes[count].value.number = number;
    longer->attributes = attributes;
    longer->attribute_count++;
}

APART mw_result raise_ex(struct kernel *kernel, mw_launch_ex real, const struct mw_config *config, void *function,
                         void **parameters, void **extra, mw_result *refusal) {
    struct mw_attribute attributes[MOST_ATTRIBUTES];
    struct mw_config raised;
    extend(&raised, attributes, config, MW_ATTRIBUTE_PRIORITY, kernel->priority);
    *refusal = real(&raised, function, parameters, extra);
    if (!refused(*refusal)) {
        receipts_grid(kernel->slot, config->grid[0] * config->grid[1] * config->grid[2]);
        receipts_count(kernel->slot, PRIORITISED);
    }
    return *refusal;
}

/* By default the driver need not configure all the shared memory that an SM has, so the room that a pad leaves may not
 * exist. A padded launch asks for all of it, unless the program has a preference. */
static struct mw_attribute most_shared = {.id = MW_ATTRIBUTE_CARVE_OUT, .value.number = MW_MOST_SHARED};

mw_result cuda_uncarved(struct kernel *kernel, mw_result refusal, mw_result without) {
    if (without == MW_SUCCESS) {
        atomic_store(&kernel->carves, false);
        receipts_note("the driver refused a carve-out (error %d): beside padded blocks there may be less room than planned",
                      refusal);
    }
    return without;
}

static mw_result launch_carved(struct kernel *kernel, mw_launch_ex real, const struct mw_config *padded, void *function,
                               void **parameters, void **extra) {
    struct mw_attribute attributes[MOST_ATTRIBUTES];
    struct mw_config carved;
    extend(&carved, attributes, padded, MW_ATTRIBUTE_CARVE_OUT, MW_MOST_SHARED);
    mw_result result = real(&carved, function, parameters, extra);
    return UNLIKELY(refused(result)) ? cuda_uncarved(kernel, result, real(padded, function, parameters, extra)) : result;
}

APART mw_result pad_ex(struct kernel *kernel, mw_launch_ex real, const struct mw_config *config, void *function,
                       void **parameters, void **extra) {
    uint32_t epoch = atomic_load(&shim_epoch);
    struct mw_config padded = *config;
    struct wishes wishes = wishes_of(config);
    if (!cuda_pad(kernel, config, wishes, &padded.smem_bytes))
        return real(config, function, parameters, extra);
    bool carve = !wishes.carved && config->attribute_count < MOST_ATTRIBUTES &&
                 (config->attributes || !config->attribute_count) &&
                 atomic_load_explicit(&kernel->carves, memory_order_relaxed);
    mw_result result = carve ? launch_carved(kernel, real, &padded, function, parameters, extra)
                             : real(&padded, function, parameters, extra);
    if (UNLIKELY(refused(result)))
        return cuda_settled(kernel, "a padded launch", epoch, result, real(config, function, parameters, extra));
    receipts_padded(kernel->slot, config->smem_bytes, padded.smem_bytes);
    return result;
}

HOT mw_result launch_ex(int symbol, const struct mw_config *config, void *function, void **parameters,
                        void **extra) {
    mw_launch_ex real = REAL(mw_launch_ex, symbol);
    if (UNLIKELY(!real))
        return MW_NOT_FOUND;
    struct kernel *kernel = config ? cuda_kernel(function) : NULL;
    if (UNLIKELY(!kernel))
        return real(config, function, parameters, extra);
    mw_result refusal;
    switch (atomic_load_explicit(&kernel->action, memory_order_relaxed)) {
    case LEAVE:
        receipts_count(kernel->slot, PLAIN);
        break;
    case PAD:
    case FIT:
        return pad_ex(kernel, real, config, function, parameters, extra);
    case RAISE:
        if (attribute(config, MW_ATTRIBUTE_PRIORITY)) {
            kernels_skip(kernel, SAID_PRIORITY, SAYS_OWN_PRIORITY);
        } else if (config->attribute_count && !config->attributes) {
            receipts_count(kernel->slot, PLAIN); /* wrong, and for the driver to say so */
        } else if (config->attribute_count >= MOST_ATTRIBUTES) {
            kernels_skip(kernel, SAID_EX, SAYS_ATTRIBUTES);
        } else {
            uint32_t epoch = atomic_load(&shim_epoch);
            mw_result result = raise_ex(kernel, real, config, function, parameters, extra, &refusal);
            if (!refused(result))
                return result;
            return cuda_settled(kernel, "a priority", epoch, refusal, real(config, function, parameters, extra));
        }
        break;
    case SKIP:
        receipts_count(kernel->slot, SKIPPED); /* the reason is recorded */
        break;
    }
    return real(config, function, parameters, extra);
}

mw_result cuLaunchKernelEx(const struct mw_config *config, void *function, void **parameters, void **extra) {
    return launch_ex(EX, config, function, parameters, extra);
}

mw_result cuLaunchKernelEx_ptsz(const struct mw_config *config, void *function, void **parameters,
                                       void **extra) {
    return launch_ex(EX_PTSZ, config, function, parameters, extra);
}

/* --- cuLaunchKernel ------------------------------------------------------------------------ */

#define AS_ASKED function, gx, gy, gz, bx, by, bz, smem, stream, parameters, extra

#define AS_CONFIG {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .smem_bytes = smem, .stream = stream}

/* A padded launch that the driver did not take: once more without a carve-out, then as the program asked. */
APART mw_result pad_less(struct kernel *kernel, mw_launch real, struct mw_config *config, mw_launch_ex ex, uint32_t asked,
                         uint32_t epoch, mw_result result, void *function, void **parameters, void **extra) {
    uint32_t given = config->smem_bytes;
    const uint32_t *grid = config->grid, *block = config->block;
#define WITH(bytes) \
    real(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], bytes, config->stream, parameters, extra)
    if (refused(result) && ex) {
        config->attribute_count = 0;
        result = cuda_uncarved(kernel, result, ex(config, function, parameters, extra));
    }
    if (refused(result))
        return cuda_settled(kernel, "a padded launch", epoch, result, WITH(asked));
    receipts_padded(kernel->slot, asked, given);
    return result;
#undef WITH
}

/* A carve-out is an attribute, which only cuLaunchKernelEx takes. */
HOT mw_result pad(struct kernel *kernel, mw_launch real, int ex_symbol, void *function, DIMENSIONS, uint32_t smem,
                  void *stream, void **parameters, void **extra) {
    struct mw_config config = AS_CONFIG;
    uint32_t epoch = atomic_load_explicit(&shim_epoch, memory_order_relaxed), given = smem;
    if (UNLIKELY(!cuda_pad_again(kernel, &config, 0, &given)) &&
        !cuda_pad(kernel, &config, (struct wishes){0}, &given))
        return real(AS_ASKED);
    mw_launch_ex ex = NULL;
    mw_result result;
    config.smem_bytes = given;
    if (atomic_load_explicit(&kernel->carves, memory_order_relaxed) && (ex = REAL(mw_launch_ex, ex_symbol))) {
        config.attributes = &most_shared;
        config.attribute_count = 1;
        result = ex(&config, function, parameters, extra);
    } else {
        result = real(function, gx, gy, gz, bx, by, bz, given, stream, parameters, extra);
    }
    if (UNLIKELY(result != MW_SUCCESS))
        return pad_less(kernel, real, &config, ex, smem, epoch, result, function, parameters, extra);
    receipts_padded(kernel->slot, smem, given);
    return result;
}

APART mw_result raise_plain(struct kernel *kernel, mw_launch real, int ex_symbol, void *function, DIMENSIONS,
                            uint32_t smem, void *stream, void **parameters, void **extra) {
    struct mw_config config = AS_CONFIG;
    uint32_t epoch = atomic_load(&shim_epoch);
    mw_launch_ex ex = REAL(mw_launch_ex, ex_symbol);
    mw_result refusal;
    if (!ex) {
        kernels_skip(kernel, SAID_EX, "this driver has no cuLaunchKernelEx, which takes a priority");
        return real(AS_ASKED);
    }
    mw_result result = raise_ex(kernel, ex, &config, function, parameters, extra, &refusal);
    return refused(result) ? cuda_settled(kernel, "a priority", epoch, refusal, real(AS_ASKED)) : result;
}

HOT mw_result launch(int symbol, int ex_symbol, void *function, DIMENSIONS, uint32_t smem, void *stream,
                     void **parameters, void **extra) {
    mw_launch real = REAL(mw_launch, symbol);
    if (UNLIKELY(!real))
        return MW_NOT_FOUND;
    struct kernel *kernel = cuda_kernel(function);
    if (UNLIKELY(!kernel))
        return real(AS_ASKED);
    switch (atomic_load_explicit(&kernel->action, memory_order_relaxed)) {
    case LEAVE:
        receipts_count(kernel->slot, PLAIN);
        break;
    case PAD:
    case FIT:
        return pad(kernel, real, ex_symbol, AS_ASKED);
    case RAISE:
        return raise_plain(kernel, real, ex_symbol, AS_ASKED);
    case SKIP:
        receipts_count(kernel->slot, SKIPPED); /* the reason is recorded */
        break;
    }
    return real(AS_ASKED);
}

mw_result cuLaunchKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters,
                                void **extra) {
    return launch(LAUNCH, EX, AS_ASKED);
}

mw_result cuLaunchKernel_ptsz(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters,
                                     void **extra) {
    return launch(LAUNCH_PTSZ, EX_PTSZ, AS_ASKED);
}

static mw_result launch_cooperative(int symbol, int ex_symbol, void *function, DIMENSIONS, uint32_t smem, void *stream,
                                    void **parameters) {
    mw_launch_cooperative real = REAL(mw_launch_cooperative, symbol);
    if (!real)
        return MW_NOT_FOUND;
    struct kernel *kernel = cuda_kernel(function);
    enum action action = kernel ? atomic_load(&kernel->action) : LEAVE;
    mw_launch_ex ex = action == RAISE ? REAL(mw_launch_ex, ex_symbol) : NULL;
    if (ex) { /* the same launch, written so that it can carry a priority */
        struct mw_attribute together = {.id = MW_ATTRIBUTE_COOPERATIVE, .value.number = 1};
        struct mw_config config = AS_CONFIG;
        config.attributes = &together;
        config.attribute_count = 1;
        uint32_t epoch = atomic_load(&shim_epoch);
        mw_result refusal, result = raise_ex(kernel, ex, &config, function, parameters, NULL, &refusal);
        if (!refused(result))
            return result;
        return cuda_settled(kernel, "a priority", epoch, refusal,
                       real(function, gx, gy, gz, bx, by, bz, smem, stream, parameters));
    }
    if (kernel && action == LEAVE)
        receipts_count(kernel->slot, PLAIN);
    else if (kernel)
        kernels_skip(kernel, SAID_COOPERATIVE, SAYS_COOPERATIVE);
    return real(function, gx, gy, gz, bx, by, bz, smem, stream, parameters);
}

mw_result cuLaunchCooperativeKernel(void *function, DIMENSIONS, uint32_t smem, void *stream, void **parameters) {
    return launch_cooperative(COOPERATIVE, EX, function, gx, gy, gz, bx, by, bz, smem, stream, parameters);
}

mw_result cuLaunchCooperativeKernel_ptsz(void *function, DIMENSIONS, uint32_t smem, void *stream,
                                                void **parameters) {
    return launch_cooperative(COOPERATIVE_PTSZ, EX_PTSZ, function, gx, gy, gz, bx, by, bz, smem, stream, parameters);
}

/* --- what invalidates a decision ----------------------------------------------------------- */

static bool matters(int id) {
    return id == MW_FUNCTION_MAX_DYNAMIC_BYTES || id == MW_FUNCTION_SMEM_MODE || id == MW_FUNCTION_CARVE_OUT;
}

mw_result cuFuncSetAttribute(void *function, int id, int value) {
    mw_function_set real = REAL(mw_function_set, FUNCTION_SET);
    if (!real || !matters(id))
        return real ? real(function, id, value) : MW_NOT_FOUND;
    pthread_mutex_lock(&shim_limits);
    mw_result result = real(function, id, value);
    atomic_fetch_add(&shim_epoch, 1);
    pthread_mutex_unlock(&shim_limits);
    return result;
}

mw_result cuKernelSetAttribute(int id, int value, void *kernel, int device) {
    mw_kernel_set real = REAL(mw_kernel_set, KERNEL_SET);
    if (!real || !matters(id))
        return real ? real(id, value, kernel, device) : MW_NOT_FOUND;
    pthread_mutex_lock(&shim_limits);
    mw_result result = real(id, value, kernel, device);
    atomic_fetch_add(&shim_epoch, 1);
    pthread_mutex_unlock(&shim_limits);
    return result;
}

static mw_result unload(int symbol, void *handle) {
    mw_one_handle real = REAL(mw_one_handle, symbol);
    if (!real)
        return MW_NOT_FOUND;
    code_forget(handle);
    mw_result result = real(handle);
    kernels_unloaded();
    return result;
}

static mw_result unload_device(int symbol, int device) {
    mw_one_number real = REAL(mw_one_number, symbol);
    mw_result result = real ? real(device) : MW_NOT_FOUND;
    kernels_unloaded();
    return result;
}

#define UNLOADS(name, symbol, type, through) \
    mw_result name(type what) {              \
        return through(symbol, what);        \
    }
UNLOADS(cuModuleUnload, MODULE_UNLOAD, void *, unload)
UNLOADS(cuLibraryUnload, LIBRARY_UNLOAD, void *, unload)
UNLOADS(cuCtxDestroy, CONTEXT_DESTROY, void *, unload)
UNLOADS(cuCtxDestroy_v2, CONTEXT_DESTROY_V2, void *, unload)
UNLOADS(cuDevicePrimaryCtxReset, PRIMARY_RESET, int, unload_device)
UNLOADS(cuDevicePrimaryCtxReset_v2, PRIMARY_RESET_V2, int, unload_device)
UNLOADS(cuDevicePrimaryCtxRelease, PRIMARY_RELEASE, int, unload_device)
UNLOADS(cuDevicePrimaryCtxRelease_v2, PRIMARY_RELEASE_V2, int, unload_device)

/* --- code objects -------------------------------------------------------------------------- */

static bool watches(mw_result result, void *const *made) {
    return result == MW_SUCCESS && made && shim_on() && shim_rules.any_code;
}

mw_result cuModuleLoad(void **module, const char *path) {
    mw_load real = REAL(mw_load, MODULE_LOAD);
    mw_result result = real ? real(module, path) : MW_NOT_FOUND;
    if (watches(result, module))
        code_learn_file(*module, path);
    return result;
}

mw_result cuModuleLoadData(void **module, const void *image) {
    mw_load real = REAL(mw_load, MODULE_LOAD_DATA);
    mw_result result = real ? real(module, image) : MW_NOT_FOUND;
    if (watches(result, module))
        code_learn(*module, image);
    return result;
}

mw_result cuModuleLoadDataEx(void **module, const void *image, uint32_t count, void *options, void **values) {
    mw_load_ex real = REAL(mw_load_ex, MODULE_LOAD_DATA_EX);
    mw_result result = real ? real(module, image, count, options, values) : MW_NOT_FOUND;
    if (watches(result, module))
        code_learn(*module, image);
    return result;
}

mw_result cuLibraryLoadData(void **library, const void *image, void *jit, void **jit_values, uint32_t jits,
                                   void *options, void **values, uint32_t count) {
    mw_load_library real = REAL(mw_load_library, LIBRARY_LOAD_DATA);
    mw_result result = real ? real(library, image, jit, jit_values, jits, options, values, count) : MW_NOT_FOUND;
    if (watches(result, library))
        code_learn(*library, image);
    return result;
}

mw_result cuLibraryLoadFromFile(void **library, const char *path, void *jit, void **jit_values, uint32_t jits,
                                       void *options, void **values, uint32_t count) {
    mw_load_library real = REAL(mw_load_library, LIBRARY_LOAD_FILE);
    mw_result result = real ? real(library, path, jit, jit_values, jits, options, values, count) : MW_NOT_FOUND;
    if (watches(result, library))
        code_learn_file(*library, path);
    return result;
}

/* --- CUkernel handles ------------------------------------------------------------------------ */

mw_result cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    mw_get_kernel real = REAL(mw_get_kernel, LIBRARY_KERNEL);
    mw_result result = real ? real(kernel, library, name) : MW_NOT_FOUND;
    if (result == MW_SUCCESS && kernel && *kernel)
        kernels_mark_handle(*kernel);
    return result;
}

mw_result cuLibraryEnumerateKernels(void **kernels, uint32_t count, void *library) {
    mw_get_kernels real = REAL(mw_get_kernels, LIBRARY_KERNELS);
    mw_result result = real ? real(kernels, count, library) : MW_NOT_FOUND;
    for (uint32_t at = 0; result == MW_SUCCESS && kernels && at < count; at++)
        if (kernels[at])
            kernels_mark_handle(kernels[at]);
    return result;
}
