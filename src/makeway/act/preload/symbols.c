/* Finds the real functions and hands out ours instead: by symbol, by dlsym, by the driver's own look-up. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

typedef void *(*look_up)(void *, const char *);

/* The stub below jumps through it, so it is neither static nor exported. */
__attribute__((visibility("hidden"))) _Atomic(look_up) makeway_real_dlsym;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define PLAIN_CODE __attribute__((no_sanitize("address", "thread", "undefined")))

/* Runs before sanitizers are ready: their run-times call dlsym during start-up. */
PLAIN_CODE static look_up real_dlsym(void) {
    look_up found = atomic_load_explicit(&makeway_real_dlsym, memory_order_relaxed);
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (unsigned at = 0; !found && at < sizeof versions / sizeof *versions; at++) {
        void *pointer = dlvsym(RTLD_NEXT, "dlsym", versions[at]);
        memcpy(&found, &pointer, sizeof found);
        atomic_store_explicit(&makeway_real_dlsym, found, memory_order_relaxed);
    }
    return found;
}

void symbols_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void symbols_after_fork(void) {
    pthread_mutex_unlock(&lock);
}

/* --- libraries ----------------------------------------------------------------------------- */

static void *base_of(const void *pointer) {
    Dl_info facts;
    return pointer && dladdr(pointer, &facts) ? facts.dli_fbase : NULL;
}

static bool has_stem(const struct api *api, const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, api->stem, strlen(api->stem)) == 0;
}

static bool is_driver(const struct api *api, const void *pointer) {
    Dl_info facts;
    return dladdr(pointer, &facts) && facts.dli_fname && has_stem(api, facts.dli_fname);
}

/* The handle is only borrowed: close it, so that the program may still unload the library. */
static void *borrow_library_of(const void *pointer) {
    Dl_info facts;
    return dladdr(pointer, &facts) && facts.dli_fname ? dlopen(facts.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

struct search {
    const struct api *api;
    char path[4096];
};

static int match_stem(struct dl_phdr_info *facts, size_t size, void *out) {
    struct search *search = out;
    (void)size;
    if (!facts->dlpi_name || !has_stem(search->api, facts->dlpi_name) ||
        strlen(facts->dlpi_name) >= sizeof search->path)
        return 0;
    strcpy(search->path, facts->dlpi_name);
    return 1;
}

/* The driver, however its file is called (libamdhip64.so.6) and whoever loaded it; NULL when it is not loaded. */
static void *borrow_driver(const struct api *api) {
    void *handle = dlopen(api->library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle)
        return handle;
    struct search search = {.api = api};
    return dl_iterate_phdr(match_stem, &search) ? dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

/* --- binding ------------------------------------------------------------------------------- */

/* Everything is looked up before our lock is taken: dlsym takes the loader's lock, and a constructor that runs inside
 * dlopen holds that one already when it calls us. */
static void bind(struct api *api, void *handle) {
    look_up look = real_dlsym();
    void *real[MOST_SYMBOLS], *base = NULL;
    void *behind = NULL; /* the driver behind a library that replaces some of its functions */
    for (int at = 0; at < api->count; at++) {
        const struct symbol *symbol = &api->symbols[at];
        real[at] = look(handle, symbol->name);
        if (real[at] && real[at] == symbol->wrapper)
            real[at] = look(RTLD_NEXT, symbol->name);
        if (!base && real[at])
            base = base_of(real[at]);
    }
    for (int at = 0; at < api->count; at++) {
        if (real[at] || !base || is_driver(api, base))
            continue;
        if (!behind && !(behind = borrow_driver(api)))
            break;
        real[at] = look(behind, api->symbols[at].name);
    }
    dlerror(); /* functions this driver does not have are no error of the program's */
    pthread_mutex_lock(&lock);
    for (int at = 0; at < api->count; at++)
        atomic_store_explicit(&api->real[at], real[at], memory_order_relaxed);
    if (atomic_load(&api->bound))
        atomic_fetch_add(&shim_generation, 1); /* the library was unloaded and another loaded */
    atomic_store_explicit(&api->bound, true, memory_order_release);
    pthread_mutex_unlock(&lock);
    if (behind)
        dlclose(behind);
}

static bool bind_where(struct api *api, void *pointer) {
    void *handle = borrow_library_of(pointer);
    if (!handle)
        return false;
    bind(api, handle);
    dlclose(handle);
    return true;
}

void *symbols_find(struct api *api, int symbol) {
    if (!atomic_load_explicit(&api->bound, memory_order_acquire)) {
        void *next = real_dlsym()(RTLD_NEXT, api->symbols[symbol].name);
        if (!next || !bind_where(api, next)) {
            void *handle = borrow_driver(api);
            if (handle) {
                bind(api, handle);
                dlclose(handle);
            }
        }
        dlerror();
    }
    return atomic_load_explicit(&api->real[symbol], memory_order_relaxed);
}

bool symbols_together(struct api *api, int one, int other) {
    const void *first = real_of(api, one), *second = real_of(api, other);
    return first && second && base_of(first) == base_of(second);
}

void *symbols_replace(struct api *api, int symbol, void *real) {
    void *known = atomic_load_explicit(&api->real[symbol], memory_order_relaxed);
    if (!known && atomic_load_explicit(&api->bound, memory_order_acquire))
        atomic_store_explicit(&api->real[symbol], real, memory_order_relaxed); /* not exported, but found by look-up */
    else if (!known && !bind_where(api, real))
        return real;
    return api->symbols[symbol].wrapper;
}

/* --- dlsym --------------------------------------------------------------------------------- */

#define NOT_FOUND ((void *)1) /* stands for NULL; NULL itself means "call the real dlsym" */

PLAIN_CODE static struct api *api_of(const char *name) {
    if (!name)
        return NULL;
    if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z')
        return &cuda;
    if (name[0] == 'h' && name[1] == 'i' && name[2] == 'p' && name[3] >= 'A' && name[3] <= 'Z')
        return &hip;
    return NULL;
}

static int symbol_of(const struct api *api, const char *name) {
    for (int at = 0; at < api->count; at++)
        if (api->symbols[at].wrapper && strcmp(api->symbols[at].name, name) == 0)
            return at;
    return -1;
}

/* Who must get what the real dlsym gives: a driver that looks its own functions up (the one of WSL 2 does), and a
 * library that replaces this function itself and looks for the next one. With ours, both would call themselves. */
static bool must_get_the_real(const struct api *api, const char *name, void *caller) {
    if (is_driver(api, caller))
        return true;
    void *handle = borrow_library_of(caller);
    if (!handle)
        return false;
    void *own = real_dlsym()(handle, name);
    bool replaces = own && base_of(own) == base_of(caller);
    dlclose(handle);
    return replaces;
}

static int read_unloads(struct dl_phdr_info *facts, size_t size, void *out) {
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof facts->dlpi_subs)
        *(unsigned long long *)out = facts->dlpi_subs;
    return 1; /* the first library decides */
}

/* A library that was closed and reopened may be at the same address, with fresh state. */
static bool unloaded_since(void) {
    static _Atomic unsigned long long seen;
    unsigned long long now = 0;
    dl_iterate_phdr(read_unloads, &now);
    return atomic_exchange(&seen, now) != now;
}

struct places {
    const void *theirs, *ours;
    int at, theirs_at, ours_at;
};

static int note_places(struct dl_phdr_info *facts, size_t size, void *out) {
    struct places *places = out;
    (void)size;
    for (int at = 0; at < facts->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &facts->dlpi_phdr[at];
        uintptr_t start = facts->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type != PT_LOAD)
            continue;
        if ((uintptr_t)places->theirs >= start && (uintptr_t)places->theirs < end)
            places->theirs_at = places->at;
        if ((uintptr_t)places->ours >= start && (uintptr_t)places->ours < end)
            places->ours_at = places->at;
    }
    places->at++;
    return 0;
}

/* Whether code is in the program or a library before us: what it calls "next" may be ours. */
static bool is_before_us(const void *code) {
    struct places places = {.theirs = code, .ours = (const void *)&note_places, .theirs_at = -1, .ours_at = -1};
    dl_iterate_phdr(note_places, &places);
    return places.theirs_at < places.ours_at;
}

/* Whether our function must go on to another library than this one: the one that was bound, if it is still there, or
 * the one that callers bound to our name reach without us (a tracer, or a first driver). */
static bool is_second(struct api *api, int symbol, void *real) {
    const char *name = api->symbols[symbol].name;
    void *known = atomic_load_explicit(&api->real[symbol], memory_order_relaxed), *next = real_dlsym()(RTLD_NEXT, name);
    bool second = next && next != real;
    void *handle = !second && known && known != real ? borrow_library_of(known) : NULL;
    if (handle) {
        second = real_dlsym()(handle, name) == known;
        dlclose(handle);
    }
    if (second && !atomic_exchange(&api->second, true))
        receipts_note("a second library has %s: its launches are left as they are", name);
    return second;
}

/* What the caller finds without us: the next in the global scope, else what its own library is linked to. */
static void *behind_us(const char *name, const void *caller) {
    look_up look = real_dlsym();
    void *real = look(RTLD_NEXT, name), *handle = real ? NULL : borrow_library_of(caller);
    if (handle) {
        real = look(handle, name);
        dlclose(handle);
    }
    return real ? real : look(RTLD_NEXT, name); /* once more in vain, for what dlerror says */
}

static void *resolve_ours(struct api *api, int symbol, void *handle, const void *caller) {
    const char *name = api->symbols[symbol].name;
    void *real = real_dlsym()(handle, name);
    if (real == api->symbols[symbol].wrapper)
        real = behind_us(name, caller);
    if (!real)
        return NOT_FOUND;
    if (!shim_on() || is_before_us(real) || is_second(api, symbol, real))
        return real;
    bool known = atomic_load_explicit(&api->real[symbol], memory_order_relaxed) == real;
    if ((unloaded_since() || !known) && !bind_where(api, real))
        return real;
    return api->symbols[symbol].wrapper;
}

/* RTLD_NEXT means "behind the caller": the real dlsym knows, and finds our function for callers before us. Only where
 * no library is behind us must such a caller get nothing, as without us. */
static void *resolve_next(struct api *api, int symbol, const void *caller) {
    if (real_dlsym()(RTLD_NEXT, api->symbols[symbol].name))
        return NULL;
    return is_before_us(caller) ? NOT_FOUND : NULL;
}

__attribute__((visibility("hidden"), used)) PLAIN_CODE void *makeway_resolve(void *handle, const char *name,
                                                                             void *caller) {
    real_dlsym();
    struct api *api = api_of(name);
    int symbol = api ? symbol_of(api, name) : -1;
    if (symbol < 0)
        return NULL;
    if (handle == RTLD_NEXT)
        return resolve_next(api, symbol, caller);
    if (must_get_the_real(api, name, caller))
        return NULL;
    void *found = resolve_ours(api, symbol, handle, caller);
    if (found != NOT_FOUND)
        dlerror(); /* as after any dlsym that succeeds: what we asked in vain is no error of the program's */
    return found;
}

/* dlsym(RTLD_NEXT, ...) depends on its caller: what is not ours goes to the real dlsym by a jump, with the caller's
 * return address still in place. */
#if defined(__x86_64__)
__asm__(".text\n.globl dlsym\n.type dlsym, @function\ndlsym:\n"
        ".cfi_startproc\n"
        "  endbr64\n"
        "  pushq %rdi\n .cfi_adjust_cfa_offset 8\n"
        "  pushq %rsi\n .cfi_adjust_cfa_offset 8\n"
        "  subq $8, %rsp\n .cfi_adjust_cfa_offset 8\n"
        "  movq 24(%rsp), %rdx\n"
        "  call makeway_resolve\n"
        "  addq $8, %rsp\n .cfi_adjust_cfa_offset -8\n"
        "  popq %rsi\n .cfi_adjust_cfa_offset -8\n"
        "  popq %rdi\n .cfi_adjust_cfa_offset -8\n"
        "  testq %rax, %rax\n"
        "  je 1f\n"
        "  cmpq $1, %rax\n"
        "  je 2f\n"
        "  ret\n"
        "1: jmp *makeway_real_dlsym(%rip)\n"
        "2: xorl %eax, %eax\n"
        "  ret\n"
        ".cfi_endproc\n.size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl dlsym\n.type dlsym, %function\ndlsym:\n"
        ".cfi_startproc\n"
        "  stp x29, x30, [sp, #-32]!\n"
        "  .cfi_def_cfa_offset 32\n .cfi_offset 29, -32\n .cfi_offset 30, -24\n"
        "  stp x0, x1, [sp, #16]\n"
        "  mov x29, sp\n"
        "  mov x2, x30\n"
        "  bl makeway_resolve\n"
        "  mov x9, x0\n"
        "  ldp x0, x1, [sp, #16]\n"
        "  ldp x29, x30, [sp], #32\n"
        "  .cfi_restore 29\n .cfi_restore 30\n .cfi_def_cfa_offset 0\n"
        "  cbz x9, 1f\n"
        "  cmp x9, #1\n"
        "  csel x0, xzr, x9, eq\n"
        "  ret\n"
        "1: adrp x9, makeway_real_dlsym\n"
        "  ldr x9, [x9, :lo12:makeway_real_dlsym]\n"
        "  br x9\n"
        ".cfi_endproc\n.size dlsym, . - dlsym\n");
#else
#error "the launch shim is written for x86-64 and aarch64"
#endif
