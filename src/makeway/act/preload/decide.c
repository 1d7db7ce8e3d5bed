/* What to do with a CUDA kernel, decided at its first launch, and how much shared memory that takes. */
#include "cuda_driver.h"

#include <stdio.h>
#include <string.h>

/* --- first launch -------------------------------------------------------------------------- */

static const char *name_by(int symbol, void *function) {
    mw_name_of ask = REAL(mw_name_of, symbol);
    const char *name = NULL;
    return ask && ask(&name, function) == MW_SUCCESS ? name : NULL;
}

/* Query a handle as the type it was handed out as; try both for a CUkernel whose creation we missed. */
static const char *name_of(void *function, bool *handle) {
    bool marked = kernels_is_handle(function);
    const char *name = name_by(marked ? KERNEL_NAME : FUNCTION_NAME, function);
    *handle = (name != NULL) == marked;
    return name ? name : name_by(marked ? FUNCTION_NAME : KERNEL_NAME, function);
}

static bool code_of(void *function, bool handle, char hex[17]) {
    mw_handle_of owner = REAL(mw_handle_of, handle ? KERNEL_LIBRARY : FUNCTION_MODULE);
    void *found = NULL;
    return owner && owner(&found, function) == MW_SUCCESS && code_find(found, hex);
}

static int function_number(const struct kernel *kernel, int attribute, int *value) {
    if (kernel->handle) {
        mw_kernel_get get = REAL(mw_kernel_get, KERNEL_GET);
        return get ? get(value, attribute, kernel->function, kernel->device) : MW_NOT_FOUND;
    }
    mw_function_get get = REAL(mw_function_get, FUNCTION_GET);
    return get ? get(value, attribute, kernel->function) : MW_NOT_FOUND;
}

static void refuse(struct kernel *made, const char *words) {
    made->decided = SKIP;
    receipts_reason(made->slot, "%s", words);
}

static void measure(struct kernel *made) {
    mw_device_attribute device_get = REAL(mw_device_attribute, DEVICE_GET);
    int fixed = 0, opt_in = 0, now = 0, cluster = 0;
    if (!device_get || device_get(&opt_in, MW_DEVICE_OPT_IN_BYTES, made->device) != MW_SUCCESS ||
        function_number(made, MW_FUNCTION_STATIC_BYTES, &fixed) != MW_SUCCESS ||
        function_number(made, MW_FUNCTION_MAX_DYNAMIC_BYTES, &now) != MW_SUCCESS || fixed < 0 || now < 0) {
        refuse(made, "the driver does not say how much shared memory this kernel may have");
        return;
    }
    if (function_number(made, MW_FUNCTION_CLUSTER_WIDTH, &cluster) == MW_SUCCESS && cluster > 0) {
        refuse(made, "built for clusters: padding could keep a whole cluster from fitting");
        return;
    }
    atomic_store(&made->limit, opt_in > fixed ? (uint32_t)(opt_in - fixed) : 0);
    atomic_store(&made->own, (uint32_t)now);
    atomic_store(&made->raised, (uint32_t)now);
}

static void rank(struct kernel *made) {
    mw_two_numbers range = REAL(mw_two_numbers, PRIORITY_RANGE);
    int least = 0, greatest = 0;
    if (!real_of(&cuda, EX))
        refuse(made, "this driver has no cuLaunchKernelEx, which takes a priority");
    else if (!range || range(&least, &greatest) != MW_SUCCESS || least == greatest)
        refuse(made, "this device has no priorities");
    made->priority = greatest;
}

static void choose(struct kernel *made, const char *name, bool comm) {
    char hex[17];
    bool code = shim_rules.any_code && code_of(made->function, made->handle, hex);
    const struct rule *rule = comm ? NULL : rules_find(&shim_rules, name, code ? hex : NULL);
    if (comm && shim_rules.raise_comm_priority)
        made->decided = RAISE;
    else if (rule) {
        made->decided = rule->kind == RULE_PAD ? PAD : FIT;
        made->value = rule->value;
    }
}

/* Facts that are valid in one context only. */
static void complete(struct kernel *made) {
    mw_number device = REAL(mw_number, CURRENT_DEVICE);
    if (made->decided == LEAVE)
        return;
    if (!device || device(&made->device) != MW_SUCCESS)
        refuse(made, "this thread has no context");
    else if (made->decided == RAISE)
        rank(made);
    else
        measure(made);
}

static void tell(const struct kernel *made, bool comm) {
    static const char *const words[] = {"left as it is", "padded by", "padded to so many blocks per SM:",
                                        "raised in priority to", "skipped"};
    int number = made->decided == RAISE ? made->priority : (int)made->value;
    if (made->decided == LEAVE || made->decided == SKIP)
        shim_log("%s%s: %s", comm ? "communication " : "", made->name, words[made->decided]);
    else
        shim_log("%s%s: %s %d", comm ? "communication " : "", made->name, words[made->decided], number);
}

static struct kernel *add(struct kernel *made) {
    atomic_store(&made->action, made->decided);
    return kernels_add(made);
}

static struct kernel *learn(void *function, void *context) {
    struct kernel made = {.function = function, .context = context};
    atomic_store(&made.generation, atomic_load(&shim_generation));
    atomic_store(&made.epoch, atomic_load(&shim_epoch));
    const char *name = name_of(function, &made.handle);
    if (!name)
        receipts_note("this driver gives no kernel names (cuFuncGetName came with CUDA 12.3): no rule can match a name");
    bool comm = name && rules_comm(&shim_rules, name);
    made.slot = receipts_slot(name ? name : "(no name)", comm);
    snprintf(made.name, sizeof made.name, "%s", name ? name : "(no name)");
    choose(&made, name, comm);
    if (made.handle && !context && made.decided != LEAVE) {
        made.by_context = true;
        return add(&made);
    }
    complete(&made);
    tell(&made, comm);
    return add(&made);
}

static bool fresh(const struct kernel *kernel) {
    return kernel && atomic_load_explicit(&kernel->generation, memory_order_acquire) == atomic_load(&shim_generation);
}

struct kernel *cuda_meet(void *function) {
    if (!shim_on() || !function)
        return NULL;
    struct kernel *kernel = kernels_find(function, NULL);
    if (!fresh(kernel))
        kernel = learn(function, NULL);
    if (!kernel || !kernel->by_context)
        return kernel;
    mw_current current = REAL(mw_current, CURRENT);
    void *context = NULL;
    if (!current || current(&context) != MW_SUCCESS || !context)
        return NULL;
    kernel = kernels_find(function, context);
    return fresh(kernel) ? kernel : learn(function, context);
}

/* --- shared memory ------------------------------------------------------------------------- */

enum { ALLOWED = 0, OVER_ITS_OWN = -1 };

static int set_limit(struct kernel *kernel, uint32_t bytes) {
    mw_result result = MW_NOT_FOUND;
    if (kernel->handle) {
        /* Not cuFuncSetAttribute: it would permanently override what the program sets on the CUkernel. */
        mw_kernel_set set = REAL(mw_kernel_set, KERNEL_SET);
        result = set ? set(MW_FUNCTION_MAX_DYNAMIC_BYTES, (int)bytes, kernel->function, kernel->device) : result;
    } else {
        mw_function_set set = REAL(mw_function_set, FUNCTION_SET);
        result = set ? set(kernel->function, MW_FUNCTION_MAX_DYNAMIC_BYTES, (int)bytes) : result;
    }
    if (result == MW_SUCCESS)
        atomic_store(&kernel->raised, bytes);
    return result;
}

static int allow_locked(struct kernel *kernel, uint32_t asked, uint32_t wanted) {
    uint32_t epoch = atomic_load(&shim_epoch);
    int now = 0;
    if (atomic_load(&kernel->epoch) != epoch) {
        int result = function_number(kernel, MW_FUNCTION_MAX_DYNAMIC_BYTES, &now);
        if (result != MW_SUCCESS)
            return result;
        if ((uint32_t)now != atomic_load(&kernel->raised)) { /* set by the program, not by us */
            atomic_store(&kernel->own, (uint32_t)now);
            atomic_store(&kernel->raised, (uint32_t)now);
        }
        atomic_store(&kernel->epoch, epoch);
    }
    if (asked > atomic_load(&kernel->own)) {
        /* The program must see its own launch refused, as without the shim. */
        if (atomic_load(&kernel->raised) != atomic_load(&kernel->own))
            set_limit(kernel, atomic_load(&kernel->own));
        return OVER_ITS_OWN;
    }
    return wanted > atomic_load(&kernel->raised) ? set_limit(kernel, wanted) : ALLOWED;
}

static bool allowed(struct kernel *kernel, uint32_t asked, uint32_t wanted) {
    if (atomic_load_explicit(&kernel->epoch, memory_order_acquire) ==
            atomic_load_explicit(&shim_epoch, memory_order_relaxed) &&
        wanted <= atomic_load_explicit(&kernel->raised, memory_order_relaxed) &&
        asked <= atomic_load_explicit(&kernel->own, memory_order_relaxed))
        return true;
    pthread_mutex_lock(&shim_limits);
    int result = allow_locked(kernel, asked, wanted);
    pthread_mutex_unlock(&shim_limits);
    if (result == OVER_ITS_OWN)
        kernels_skip(kernel, SAID_OWN_LIMIT, "a launch asked for more than the program allowed this kernel");
    else if (result != ALLOWED)
        kernels_drop(kernel, "to raise its limit of dynamic shared memory", result);
    return result == ALLOWED;
}

static uint32_t fitting(const struct kernel *kernel, uint32_t threads) {
    mw_active active = REAL(mw_active, ACTIVE);
    mw_available available = REAL(mw_available, AVAILABLE);
    void *function = kernel->function;
    mw_handle_of function_of = REAL(mw_handle_of, KERNEL_FUNCTION);
    if (kernel->handle && (!function_of || function_of(&function, kernel->function) != MW_SUCCESS))
        return 0;
    int blocks = 0;
    size_t bytes = 0;
    if (!active || !available || active(&blocks, function, (int)threads, 0) != MW_SUCCESS ||
        blocks <= (int)kernel->value || available(&bytes, function, (int)kernel->value, (int)threads) != MW_SUCCESS)
        return 0;
    uint32_t limit = atomic_load(&kernel->limit);
    return bytes > limit ? limit : (uint32_t)bytes;
}

static bool fit(struct kernel *kernel, uint32_t threads, uint32_t asked, uint32_t *given) {
    uint64_t fitted = atomic_load_explicit(&kernel->fitted, memory_order_relaxed);
    if (UNLIKELY(fitted >> 32 != threads)) {
        /* The driver caps its answer at the kernel's current limit, so raise that first. */
        if (!allowed(kernel, asked, atomic_load(&kernel->limit)))
            return false;
        fitted = (uint64_t)threads << 32 | fitting(kernel, threads);
        atomic_store_explicit(&kernel->fitted, fitted, memory_order_relaxed);
    }
    *given = (uint32_t)fitted;
    if (*given <= asked) {
        kernels_skip(kernel, SAID_RESIDENT, "no more blocks than asked for reside on an SM already");
        return false;
    }
    return allowed(kernel, asked, *given);
}

bool cuda_pad(struct kernel *kernel, uint32_t threads, uint32_t asked, uint32_t *given) {
    if (atomic_load_explicit(&kernel->action, memory_order_relaxed) == FIT)
        return fit(kernel, threads, asked, given);
    uint64_t wanted = (uint64_t)asked + kernel->value;
    uint32_t limit = atomic_load_explicit(&kernel->limit, memory_order_relaxed);
    if (wanted > limit) {
        char words[128];
        snprintf(words, sizeof words, "%u + %u bytes of dynamic shared memory are above the limit of %u", asked,
                 kernel->value, limit);
        kernels_skip(kernel, SAID_LIMIT, words);
        return false;
    }
    *given = (uint32_t)wanted;
    return allowed(kernel, asked, *given);
}
