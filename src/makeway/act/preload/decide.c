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

static int device_number(const struct kernel *made, int attribute) {
    mw_device_attribute get = REAL(mw_device_attribute, DEVICE_GET);
    int value = 0;
    return get && get(&value, attribute, made->device) == MW_SUCCESS ? value : 0;
}

static uint32_t left_of(int bytes, int fixed) {
    return bytes > fixed ? (uint32_t)(bytes - fixed) : 0;
}

/* What only newer drivers know: a driver that does not has no clusters, modes or carve-out to respect. */
static int number_or(const struct kernel *made, int attribute, int otherwise) {
    int value = 0;
    return function_number(made, attribute, &value) == MW_SUCCESS ? value : otherwise;
}

static void read_preferences(struct kernel *made) {
    atomic_store(&made->mode, (uint32_t)number_or(made, MW_FUNCTION_SMEM_MODE, 0));
    /* A tracer that passes on cuLaunchKernel alone must see each launch: it is not turned into another call. */
    atomic_store(&made->carves, symbols_together(&cuda, LAUNCH, EX) &&
                                    number_or(made, MW_FUNCTION_CARVE_OUT, MW_NO_CARVE_OUT) == MW_NO_CARVE_OUT);
}

static void measure(struct kernel *made) {
    int fixed = 0, now = 0, opt_in = device_number(made, MW_DEVICE_OPT_IN_BYTES), sides[3];
    if (!opt_in || function_number(made, MW_FUNCTION_STATIC_BYTES, &fixed) != MW_SUCCESS ||
        function_number(made, MW_FUNCTION_MAX_DYNAMIC_BYTES, &now) != MW_SUCCESS || fixed < 0 || now < 0) {
        refuse(made, "the driver does not say how much shared memory this kernel may have");
        return;
    }
    for (int at = 0; at < 3; at++)
        sides[at] = number_or(made, MW_FUNCTION_CLUSTER_WIDTH + at, 0);
    made->cluster = sides[0] > 0 && sides[1] > 0 && sides[2] > 0 ? (uint32_t)(sides[0] * sides[1] * sides[2]) : 0;
    made->sms = (uint32_t)device_number(made, MW_DEVICE_SMS);
    made->portable = left_of(device_number(made, MW_DEVICE_DEFAULT_BYTES), fixed);
    int oversized = device_number(made, MW_DEVICE_OVERSIZED_BYTES);
    made->largest = left_of(oversized > opt_in ? oversized : opt_in, fixed);
    atomic_store(&made->limit, left_of(opt_in, fixed));
    atomic_store(&made->own, (uint32_t)now);
    atomic_store(&made->raised, (uint32_t)now);
    read_preferences(made);
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
    const struct rule *rule = comm ? NULL : rules_find(&shim_rules, made->set, name, code ? hex : NULL);
    if (comm && shim_rules.set[made->set].raise_comm_priority)
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

/* A limit that we raised under another rule set is not the program's own. It is not lowered either: a graph may have been
 * captured with the pad, and no driver says when it looks at a node's limit. */
static void inherit_limit(struct kernel *made) {
    const struct kernel *before = kernels_find(made->function, made->context);
    if (!before || before->set == made->set || strcmp(before->name, made->name) != 0)
        return;
    uint32_t own = atomic_load(&before->own), raised = atomic_load(&before->raised);
    if (made->decided != PAD && made->decided != FIT) /* not measured: remembered for the next set */
        atomic_store(&made->raised, raised);
    if (atomic_load(&made->raised) == raised)
        atomic_store(&made->own, own);
}

static struct kernel *learn(void *function, void *context) {
    struct kernel made = {.function = function, .context = context};
    atomic_store(&made.generation, atomic_load(&shim_generation));
    atomic_store(&made.epoch, atomic_load(&shim_epoch));
    made.set = atomic_load(&shim_set); /* after the generation: a set that comes later makes this decision stale */
    const char *name = name_of(function, &made.handle);
    if (!name)
        receipts_note("this driver gives no kernel names (cuFuncGetName came with CUDA 12.3): no rule can match a name");
    bool comm = name && rules_comm(&shim_rules, name);
    made.slot = receipts_slot(name ? name : "(no name)", comm, made.set);
    snprintf(made.name, sizeof made.name, "%s", name ? name : "(no name)");
    choose(&made, name, comm);
    if (made.handle && !context && made.decided != LEAVE) {
        made.by_context = true;
        return add(&made);
    }
    complete(&made);
    inherit_limit(&made);
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
    atomic_store(&kernel->easy, 0);
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

/* The program changed a limit, a mode or a carve-out, of this kernel or of another. */
static int read_again(struct kernel *kernel, uint32_t epoch) {
    int now = 0;
    int result = function_number(kernel, MW_FUNCTION_MAX_DYNAMIC_BYTES, &now);
    if (result != MW_SUCCESS)
        return result;
    if ((uint32_t)now != atomic_load(&kernel->raised)) { /* set by the program, not by us */
        atomic_store(&kernel->own, (uint32_t)now);
        atomic_store(&kernel->raised, (uint32_t)now);
    }
    read_preferences(kernel);
    for (int at = 0; at < SHAPES; at++)
        atomic_store(&kernel->shapes[at], 0);
    atomic_store(&kernel->epoch, epoch);
    return MW_SUCCESS;
}

static bool current(const struct kernel *kernel) {
    return atomic_load_explicit(&kernel->epoch, memory_order_acquire) ==
           atomic_load_explicit(&shim_epoch, memory_order_relaxed);
}

static int allow_locked(struct kernel *kernel, uint32_t asked, uint32_t wanted) {
    if (asked > atomic_load(&kernel->own)) {
        /* The program must see its own launch refused, as without the shim. */
        if (atomic_load(&kernel->raised) != atomic_load(&kernel->own))
            set_limit(kernel, atomic_load(&kernel->own));
        return OVER_ITS_OWN;
    }
    return wanted > atomic_load(&kernel->raised) ? set_limit(kernel, wanted) : ALLOWED;
}

static bool refresh(struct kernel *kernel) {
    if (current(kernel))
        return true;
    pthread_mutex_lock(&shim_limits);
    int result = current(kernel) ? MW_SUCCESS : read_again(kernel, atomic_load(&shim_epoch));
    pthread_mutex_unlock(&shim_limits);
    if (result != MW_SUCCESS)
        kernels_drop(kernel, "to say how much shared memory this kernel may have", result);
    return result == MW_SUCCESS;
}

/* Raises the limit to `wanted` bytes where the limit counts. Call refresh() first. */
static int allow(struct kernel *kernel, uint32_t mode, uint32_t asked, uint32_t wanted) {
    if (mode || (wanted <= atomic_load_explicit(&kernel->raised, memory_order_relaxed) &&
                 asked <= atomic_load_explicit(&kernel->own, memory_order_relaxed)))
        return ALLOWED;
    pthread_mutex_lock(&shim_limits);
    int result = allow_locked(kernel, asked, wanted);
    pthread_mutex_unlock(&shim_limits);
    return result;
}

static bool allowed(struct kernel *kernel, uint32_t mode, uint32_t asked, uint32_t wanted) {
    int result = allow(kernel, mode, asked, wanted);
    if (result == OVER_ITS_OWN)
        kernels_skip(kernel, SAID_OWN_LIMIT, "a launch asked for more than the program allowed this kernel");
    else if (result != ALLOWED)
        kernels_drop(kernel, "to raise its limit of dynamic shared memory", result);
    return result == ALLOWED;
}

/* Remembers which launches need no look at any limit, until a limit changes. */
static void ease(struct kernel *kernel, bool fits) {
    pthread_mutex_lock(&shim_limits);
    uint32_t limit = atomic_load(&kernel->limit), raised = atomic_load(&kernel->raised), own = atomic_load(&kernel->own);
    uint32_t most = raised < limit ? raised : limit, value = fits ? 0 : kernel->value;
    bool plain = current(kernel) && !atomic_load(&kernel->mode) && most >= value && (!fits || most == limit);
    uint32_t below = most - value < own ? most - value + 1 : own + 1;
    if (plain && below <= 1u << BYTES_BITS)
        atomic_store(&kernel->easy, (uint64_t)atomic_load(&kernel->epoch) << 32 | below);
    pthread_mutex_unlock(&shim_limits);
}

/* The most dynamic shared memory in a mode: with a mode the function's own limit does not count. */
static uint32_t limit_in(const struct kernel *kernel, uint32_t mode) {
    if (mode == MW_SMEM_PORTABLE)
        return kernel->portable;
    return mode > MW_SMEM_NON_PORTABLE ? kernel->largest : atomic_load_explicit(&kernel->limit, memory_order_relaxed);
}

/* --- residency ----------------------------------------------------------------------------- */

/* The driver answers questions about occupancy for a CUfunction only. */
static void *asked_about(const struct kernel *kernel) {
    void *function = kernel->function;
    mw_handle_of function_of = REAL(mw_handle_of, KERNEL_FUNCTION);
    if (kernel->handle && (!function_of || function_of(&function, kernel->function) != MW_SUCCESS))
        return NULL;
    return function;
}

static int resident(void *function, uint32_t threads, uint32_t bytes) {
    mw_active active = REAL(mw_active, ACTIVE);
    int blocks = 0;
    return active && function && active(&blocks, function, (int)threads, bytes) == MW_SUCCESS ? blocks : 0;
}

static uint32_t fitting(const struct kernel *kernel, uint32_t threads, uint32_t most) {
    mw_available available = REAL(mw_available, AVAILABLE);
    void *function = asked_about(kernel);
    size_t bytes = 0;
    if (!available || resident(function, threads, 0) <= (int)kernel->value ||
        available(&bytes, function, (int)kernel->value, (int)threads) != MW_SUCCESS)
        return 0;
    return bytes > most ? most : (uint32_t)bytes;
}

static uint64_t ask_shape(const struct kernel *kernel, const struct mw_config *config, uint32_t threads, uint32_t given,
                          uint32_t cluster) {
    mw_clusters clusters = REAL(mw_clusters, ACTIVE_CLUSTERS);
    void *function = asked_about(kernel);
    struct mw_config padded = *config;
    padded.smem_bytes = given;
    int whole = 1;
    if (cluster > 1 && (!clusters || !function || clusters(&whole, function, &padded) != MW_SUCCESS))
        whole = 0;
    int plain = resident(function, threads, config->smem_bytes), crowd = 0;
    if (resident(function, threads, given) < plain)
        crowd = plain * (int)kernel->sms;
    return shape_of(threads, config->smem_bytes, cluster) | (whole > 0 ? SHAPE_WHOLE : 0) | (uint64_t)crowd << 2;
}

static uint64_t know_shape(struct kernel *kernel, const struct mw_config *config, uint32_t threads, uint32_t given,
                           uint32_t cluster) {
    uint64_t shape = shape_of(threads, config->smem_bytes, cluster);
    _Atomic uint64_t *place = shape_place(kernel, threads, config->smem_bytes, cluster);
    uint64_t known = atomic_load_explicit(place, memory_order_relaxed);
    if (UNLIKELY((known & ~SHAPE_ANSWER) != shape)) {
        known = ask_shape(kernel, config, threads, given, cluster);
        atomic_store_explicit(place, known, memory_order_relaxed);
    }
    return known;
}

static bool stands(struct kernel *kernel, const struct mw_config *config, struct wishes wishes, uint32_t threads,
                   uint32_t given) {
    enum { PORTABLE_CLUSTER = 8 };
    uint32_t cluster = wishes.cluster ? wishes.cluster : kernel->cluster;
    if (UNLIKELY(cluster > PORTABLE_CLUSTER)) {
        kernels_skip(kernel, SAID_CLUSTER, "in clusters of more than 8 blocks, which not every device places at once");
        return false;
    }
    if (UNLIKELY(threads >= MOST_THREADS || config->smem_bytes >> BYTES_BITS))
        return true; /* no driver takes such a launch */
    uint64_t known = know_shape(kernel, config, threads, given, cluster);
    uint64_t crowd = known >> 2 & ((1u << GRID_BITS) - 1);
    if (UNLIKELY(!(known & SHAPE_WHOLE))) {
        kernels_skip(kernel, SAID_CLUSTER, "with the pad no whole cluster would fit");
        return false;
    }
    if (UNLIKELY(crowd && (uint64_t)config->grid[0] * config->grid[1] * config->grid[2] == crowd)) {
        kernels_skip(kernel, SAID_ONE_WAVE,
                     "its grid is what fits on the device at once: with the pad some blocks would wait for the others");
        return false;
    }
    return true;
}

/* --- the pad ------------------------------------------------------------------------------- */

static bool fit(struct kernel *kernel, uint32_t mode, uint32_t threads, uint32_t asked, uint32_t *given) {
    uint64_t fitted = atomic_load_explicit(&kernel->fitted, memory_order_relaxed);
    if (UNLIKELY(fitted >> 32 != threads)) {
        /* The driver caps its answer at the kernel's current limit, so raise that first. */
        uint32_t most = limit_in(kernel, mode);
        if (!allowed(kernel, mode, asked, most))
            return false;
        fitted = (uint64_t)threads << 32 | fitting(kernel, threads, most);
        atomic_store_explicit(&kernel->fitted, fitted, memory_order_relaxed);
    }
    *given = (uint32_t)fitted;
    if (*given <= asked) {
        kernels_skip(kernel, SAID_RESIDENT, "no more blocks than asked for reside on an SM already");
        return false;
    }
    return allowed(kernel, mode, asked, *given);
}

static bool pad_carefully(struct kernel *kernel, const struct mw_config *config, struct wishes wishes, uint32_t *given) {
    uint32_t threads = config->block[0] * config->block[1] * config->block[2], asked = config->smem_bytes;
    if (UNLIKELY(wishes.cooperative)) {
        kernels_skip(kernel, SAID_COOPERATIVE, SAYS_COOPERATIVE);
        return false;
    }
    if (UNLIKELY(!refresh(kernel)))
        return false;
    uint32_t mode = wishes.mode ? wishes.mode : atomic_load_explicit(&kernel->mode, memory_order_relaxed);
    if (atomic_load_explicit(&kernel->action, memory_order_relaxed) == FIT)
        return fit(kernel, mode, threads, asked, given) && stands(kernel, config, wishes, threads, *given);
    uint64_t wanted = (uint64_t)asked + kernel->value;
    uint32_t limit = limit_in(kernel, mode);
    if (UNLIKELY(wanted > limit)) {
        char words[128];
        snprintf(words, sizeof words, "%u + %u bytes of dynamic shared memory are above the limit of %u%s", asked,
                 kernel->value, limit, mode == MW_SMEM_PORTABLE ? " that the program's mode sets" : "");
        kernels_skip(kernel, SAID_LIMIT, words);
        return false;
    }
    *given = (uint32_t)wanted;
    return allowed(kernel, mode, asked, *given) && stands(kernel, config, wishes, threads, *given);
}

bool cuda_pad(struct kernel *kernel, const struct mw_config *config, struct wishes wishes, uint32_t *given) {
    if (!wishes.mode && !wishes.cooperative && cuda_pad_again(kernel, config, wishes.cluster, given))
        return true;
    if (!pad_carefully(kernel, config, wishes, given))
        return false;
    if (UNLIKELY(!cuda_is_easy(kernel, config->smem_bytes)))
        ease(kernel, atomic_load(&kernel->action) == FIT);
    return true;
}

bool cuda_would_pad(struct kernel *kernel, uint32_t threads, uint32_t asked, uint32_t *given) {
    enum action action = atomic_load(&kernel->action);
    if ((action != PAD && action != FIT) || !refresh(kernel))
        return false;
    uint32_t mode = atomic_load(&kernel->mode), limit = limit_in(kernel, mode);
    if (asked > limit || allow(kernel, mode, asked, action == FIT ? limit : 0) != ALLOWED)
        return false;
    uint64_t wanted = action == FIT ? fitting(kernel, threads, limit) : (uint64_t)asked + kernel->value;
    if (wanted <= asked || wanted > limit || allow(kernel, mode, asked, (uint32_t)wanted) != ALLOWED)
        return false;
    *given = (uint32_t)wanted;
    return true;
}
