/* Shared by the parts of the shim: whether it is on, the launch rules, the real functions, the kernels seen so far. */
#ifndef MAKEWAY_SHIM_H
#define MAKEWAY_SHIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "receipts.h"
#include "rules.h"

#define EXPORT __attribute__((visibility("default")))
#define UNLIKELY(what) __builtin_expect(!!(what), 0)

/* --- state (shim.c) ------------------------------------------------------------------------ */

extern struct rules shim_rules;
extern bool shim_logs;
extern bool shim_plain_occupancy; /* the program's questions about occupancy are answered without the pad */
bool shim_on(void); /* there is a usable rules file */
/* For Python in the same process: how many rule sets there are (0: the shim is off), use one of them from the next launch
 * on (-1: there is no such set), and how often graphs were launched, whose nodes keep what they were made with. */
EXPORT uint32_t makeway_rule_sets(void);
EXPORT int makeway_use_rules(uint32_t set);
EXPORT uint64_t makeway_graph_launches(void);
extern _Atomic uint32_t shim_set; /* the rule set in force; every decision is made anew when it changes */

/* --- real functions (symbols.c) ------------------------------------------------------------ */

enum { MOST_SYMBOLS = 96 };

struct symbol {
    const char *name;
    void *wrapper; /* NULL: called by the shim, not replaced */
};

struct api {
    const char *library; /* looked up where the program is linked to the library and has called no dlsym */
    const char *stem;    /* prefix of the library's file name */
    const struct symbol *symbols;
    int count;
    _Atomic bool bound;
    _Atomic bool second; /* a second library with the same functions has been noted */
    _Atomic(void *) real[MOST_SYMBOLS];
};

extern struct api cuda, hip;

void *symbols_find(struct api *api, int symbol); /* finds the library if necessary */

/* Whether one library holds both functions. A tracer between us and the driver may know only one of them. */
bool symbols_together(struct api *api, int one, int other);

static inline void *real_of(struct api *api, int symbol) {
    void *found = atomic_load_explicit(&api->real[symbol], memory_order_relaxed);
    return UNLIKELY(!found) ? symbols_find(api, symbol) : found;
}

/* The wrapper for a pointer from a look-up by name; the pointer itself where there is none. */
void *symbols_replace(struct api *api, int symbol, void *real);

void symbols_before_fork(void);
void symbols_after_fork(void);

/* --- kernels (kernels.c) ------------------------------------------------------------------- */

enum action { LEAVE, PAD, FIT, RAISE, SKIP };
enum { SHAPES = 4 };

/* One kernel handle, decided once. Entries are never freed: a launch may be reading one at any time. */
struct kernel {
    void *function;
    void *context;   /* the context of this entry where a handle serves several; otherwise NULL */
    bool by_context; /* look up again with the current context */
    bool handle;     /* CUkernel, which has no context of its own */
    enum action decided;
    uint32_t set; /* of rules, by which it was decided */
    uint32_t slot;
    uint32_t value;
    int priority;
    int device;
    uint32_t cluster;  /* blocks of a cluster that the kernel was built for; 0: any */
    uint32_t sms;      /* of its device */
    uint32_t portable; /* dynamic shared memory that every device of this kind allows */
    uint32_t largest;  /* the same in the modes of oversized shared memory */
    char name[64]; /* its first characters, for messages */
    _Atomic enum action action;
    _Atomic uint32_t generation; /* shim_generation at the decision */
    _Atomic uint32_t epoch;      /* shim_epoch when `raised` was read */
    _Atomic uint32_t said;       /* reasons already recorded, one bit each */
    _Atomic uint32_t limit;      /* the most dynamic shared memory the device allows this kernel */
    _Atomic uint32_t own;        /* the most the program allows */
    _Atomic uint32_t raised;     /* the current limit */
    _Atomic uint32_t mode;       /* of shared memory, as the program set it; 0: `raised` counts */
    _Atomic bool carves;         /* padded launches ask for the largest shared memory */
    _Atomic uint64_t easy;       /* epoch << 32 | bytes: a launch that asks for fewer is within all limits (decide.c) */
    _Atomic uint64_t fitted;     /* threads << 32 | dynamic bytes that keep the wanted residency */
    _Atomic uint64_t shapes[SHAPES]; /* what a pad does to launches of these shapes (decide.c) */
    struct kernel *before;           /* an earlier entry for the same handle, which may come back (kernels.c) */
};

extern _Atomic uint32_t shim_generation; /* counts unloads, after which a handle may name another kernel, and rule sets */
extern _Atomic uint32_t shim_epoch;      /* counts the program's own changes of limits */
extern pthread_mutex_t shim_limits;      /* held while a kernel's limit is changed */

enum { KERNELS = 1 << 14 }; /* places in the table */
extern _Atomic(struct kernel *) kernels_table[KERNELS];

static inline uint32_t kernels_place(const void *function, const void *context) {
    uint64_t key = (uint64_t)(uintptr_t)function ^ (uint64_t)(uintptr_t)context << 1;
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 40) & (KERNELS - 1);
}

static inline struct kernel *kernels_find(void *function, void *context) {
    for (uint32_t at = kernels_place(function, context);; at = (at + 1) & (KERNELS - 1)) {
        struct kernel *kernel = atomic_load_explicit(&kernels_table[at], memory_order_acquire);
        if (!kernel || (kernel->function == function && kernel->context == context))
            return kernel;
    }
}

/* Puts a copy of `made` in the table, or an earlier entry like it, in place of a stale one for the same handle. NULL when
 * the table is full. */
struct kernel *kernels_add(const struct kernel *made);

/* Handles that the driver returned as CUkernel: in a launch they look like any CUfunction. */
void kernels_mark_handle(void *handle);
bool kernels_is_handle(void *handle);

/* After an unload: the table of handles starts anew when it is half full, since nobody says which ones are gone. */
void kernels_unloaded(void);

/* After another rule set: launches of other threads may still use the decision before. */
void kernels_decide_anew(void);

void kernels_before_fork(void);
void kernels_after_fork(bool child);

/* Counts a launch that goes through unchanged. */
void kernels_skip(struct kernel *kernel, int reason, const char *words);

/* A launch that the driver refused because of us: this kernel is left alone from now on. */
void kernels_drop(struct kernel *kernel, const char *what, mw_result result);

/* Bits of `said`. */
enum {
    SAID_COOPERATIVE,
    SAID_CLUSTER,
    SAID_LIMIT,
    SAID_RESIDENT,
    SAID_OWN_LIMIT,
    SAID_PRIORITY,
    SAID_EX,
    SAID_ONE_WAVE
};

static inline bool refused(mw_result result) {
    return result == MW_INVALID_VALUE || result == MW_LAUNCH_OUT_OF_RESOURCES || result == MW_OUT_OF_MEMORY ||
           result == MW_NOT_SUPPORTED;
}

void shim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- nodes of hand-built graphs (nodes.c) --------------------------------------------------- */

struct padded_node {
    void *node, *function;
    uint32_t asked, given;
};

void nodes_remember(struct padded_node padded);
struct padded_node nodes_find(const void *node); /* all zero: not padded, or forgotten */

/* Handles of a graph that is gone may soon name other nodes, and nobody says which were in it. */
void nodes_forget(void);
void nodes_before_fork(void);
void nodes_after_fork(void);

/* --- code objects (code.c) ----------------------------------------------------------------- */

void code_learn(const void *handle, const void *image);
void code_learn_file(const void *handle, const char *path);
void code_forget(const void *handle);
bool code_find(const void *handle, char hex[17]);
void code_before_fork(void);
void code_after_fork(void);

#endif
