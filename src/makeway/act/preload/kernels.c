#define _GNU_SOURCE
#include "shim.h"

#include <stdlib.h>

enum { MOST = KERNELS / 4 * 3, CHUNK = 256 };

_Atomic uint32_t shim_generation, shim_epoch;
/* Recursive: a tracer between us and the driver may launch kernels while it changes a limit. */
pthread_mutex_t shim_limits = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

_Atomic(struct kernel *) kernels_table[KERNELS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t used;
static struct kernel *chunk;
static uint32_t chunk_left;

static struct kernel *copy_of(const struct kernel *made) {
    if (!chunk_left) {
        chunk = calloc(CHUNK, sizeof *chunk);
        chunk_left = chunk ? CHUNK : 0;
    }
    if (!chunk_left)
        return NULL;
    struct kernel *kernel = &chunk[--chunk_left];
    *kernel = *made; /* not in the table yet: no other thread sees it */
    return kernel;
}

/* After an unload most handles still name the same kernel: keep the entry, however often that happens. */
static bool renew(struct kernel *kernel, const struct kernel *made) {
    if (kernel->slot != made->slot || kernel->set != made->set || kernel->decided != made->decided ||
        kernel->value != made->value || kernel->by_context != made->by_context || kernel->handle != made->handle ||
        kernel->priority != made->priority || kernel->device != made->device || kernel->cluster != made->cluster)
        return false;
    if (atomic_load(&kernel->raised) != atomic_load(&made->raised)) { /* otherwise it is still the limit that we set */
        atomic_store(&kernel->own, atomic_load(&made->own));
        atomic_store(&kernel->raised, atomic_load(&made->raised));
    }
    atomic_store(&kernel->limit, atomic_load(&made->limit));
    atomic_store(&kernel->epoch, atomic_load(&made->epoch));
    atomic_store(&kernel->mode, atomic_load(&made->mode));
    atomic_store(&kernel->easy, 0);
    atomic_store(&kernel->fitted, 0);
    for (int at = 0; at < SHAPES; at++)
        atomic_store(&kernel->shapes[at], 0);
    atomic_store_explicit(&kernel->generation, atomic_load(&made->generation), memory_order_release);
    return true;
}

/* Rule sets take turns: an entry that was decided in the same way before comes back, so that switches take no memory. */
static struct kernel *revive(struct kernel *there, const struct kernel *made) {
    struct kernel *newer = NULL, *kernel = there;
    for (int left = MOST_RULE_SETS; kernel && left--; newer = kernel, kernel = kernel->before)
        if (renew(kernel, made)) {
            if (newer) {
                newer->before = kernel->before;
                kernel->before = there;
            }
            return kernel;
        }
    return NULL;
}

static struct kernel *add_locked(const struct kernel *made) {
    uint32_t at = kernels_place(made->function, made->context), stale = KERNELS;
    uint32_t generation = atomic_load(&made->generation);
    struct kernel *there;
    while ((there = atomic_load_explicit(&kernels_table[at], memory_order_relaxed)) &&
           (there->function != made->function || there->context != made->context)) {
        if (stale == KERNELS && atomic_load(&there->generation) != generation)
            stale = at;
        at = (at + 1) & (KERNELS - 1);
    }
    if (there && atomic_load(&there->generation) == generation)
        return there; /* another thread was faster */
    if (!there && used >= MOST && stale == KERNELS)
        return NULL;
    struct kernel *kernel = there ? revive(there, made) : NULL;
    if (!kernel) {
        kernel = copy_of(made);
        if (!kernel)
            return NULL;
        kernel->before = there;
    }
    if (!there && used >= MOST)
        at = stale; /* its kernel was unloaded, or will be met again */
    else
        used += !there;
    atomic_store_explicit(&kernels_table[at], kernel, memory_order_release);
    return kernel;
}

struct kernel *kernels_add(const struct kernel *made) {
    pthread_mutex_lock(&lock);
    struct kernel *kernel = add_locked(made);
    pthread_mutex_unlock(&lock);
    if (!kernel)
        receipts_note("more than %d kernels: the rest are left as they are", MOST);
    return kernel;
}

/* --- CUkernel handles -------------------------------------------------------------------- */

static _Atomic(void *) handles[KERNELS];
static _Atomic uint32_t marked;

static _Atomic(void *) *handle_place(void *handle) {
    uint32_t at = kernels_place(handle, NULL);
    for (int tries = 0; tries < KERNELS / 2; tries++, at = (at + 1) & (KERNELS - 1)) {
        void *there = atomic_load_explicit(&handles[at], memory_order_relaxed);
        if (!there || there == handle)
            return &handles[at];
    }
    return NULL;
}

void kernels_mark_handle(void *handle) {
    void *none = NULL;
    _Atomic(void *) *place;
    while ((place = handle_place(handle)) && !atomic_compare_exchange_strong(place, &none, handle) && none != handle)
        none = NULL; /* another thread took the slot for another handle */
    if (place && !none)
        atomic_fetch_add_explicit(&marked, 1, memory_order_relaxed);
}

void kernels_unloaded(void) {
    atomic_fetch_add(&shim_generation, 1);
    if (atomic_load(&marked) < KERNELS / 2)
        return;
    for (int at = 0; at < KERNELS; at++) /* a live handle without its mark is asked about in both ways */
        atomic_store_explicit(&handles[at], NULL, memory_order_relaxed);
    atomic_store(&marked, 0);
}

void kernels_decide_anew(void) {
    atomic_fetch_add(&shim_generation, 1);
}

bool kernels_is_handle(void *handle) {
    _Atomic(void *) *place = handle_place(handle);
    return place && atomic_load_explicit(place, memory_order_relaxed) == handle;
}

/* --- fork and outcomes ------------------------------------------------------------------------ */

void kernels_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void kernels_after_fork(bool child) {
    pthread_mutex_unlock(&lock);
    if (child) /* a thread of the parent may have held the lock */
        shim_limits = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

void kernels_skip(struct kernel *kernel, int reason, const char *words) {
    receipts_count(kernel->slot, SKIPPED);
    uint32_t bit = 1u << reason;
    if (UNLIKELY(!(atomic_load_explicit(&kernel->said, memory_order_relaxed) & bit)) &&
        !(atomic_fetch_or(&kernel->said, bit) & bit)) {
        receipts_reason(kernel->slot, "%s", words);
        shim_log("%s: skipped: %s", kernel->name, words);
    }
}

void kernels_drop(struct kernel *kernel, const char *what, mw_result result) {
    receipts_count(kernel->slot, REFUSED);
    atomic_store(&kernel->action, SKIP);
    receipts_reason(kernel->slot, "the driver refused %s (error %d); no more of it for this kernel", what, result);
    shim_log("%s: refused: %s (error %d)", kernel->name, what, result);
}
