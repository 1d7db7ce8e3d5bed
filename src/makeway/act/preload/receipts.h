/* Counters per kernel in a file mapped shared, so that counts survive a crash of the program. */
#ifndef MAKEWAY_RECEIPTS_H
#define MAKEWAY_RECEIPTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum outcome { PLAIN, PADDED, REFUSED, SKIPPED, PRIORITISED, OUTCOMES };
enum { NO_SLOT = 0 }; /* counts kernels that did not fit in the table, together */

/* What is counted of one kernel; receipts.py reads this layout. */
struct slot {
    _Atomic uint64_t counts[OUTCOMES];
    _Atomic uint64_t bytes; /* last padded launch: requested << 32 | given; comm: largest grid << 32 | last grid */
    uint32_t name;          /* a text */
    uint16_t comm;
    uint16_t set; /* of rules, under which these launches came */
    _Atomic uint32_t reasons; /* list of texts */
    uint32_t hash;
};

/* The slot of a kernel under a rule set, created on first use. */
uint32_t receipts_slot(const char *kernel, bool comm, uint32_t set);

void receipts_graph_launched(void);
uint64_t receipts_graph_launches(void);

extern _Atomic(struct slot *) receipts_slots; /* NULL until the first count of this process */
struct slot *receipts_open(void);

static inline struct slot *receipts_at(uint32_t slot) {
    struct slot *slots = atomic_load_explicit(&receipts_slots, memory_order_acquire);
    return (__builtin_expect(slots != NULL, 1) ? slots : receipts_open()) + slot;
}

static inline void receipts_count(uint32_t slot, enum outcome outcome) {
    atomic_fetch_add_explicit(&receipts_at(slot)->counts[outcome], 1, memory_order_relaxed);
}

static inline void receipts_padded(uint32_t slot, uint32_t asked, uint32_t given) {
    struct slot *own = receipts_at(slot);
    uint64_t both = (uint64_t)asked << 32 | given;
    if (atomic_load_explicit(&own->bytes, memory_order_relaxed) != both)
        atomic_store_explicit(&own->bytes, both, memory_order_relaxed);
    atomic_fetch_add_explicit(&own->counts[PADDED], 1, memory_order_relaxed);
}

void receipts_grid(uint32_t slot, uint32_t blocks); /* of a communication kernel, which is never padded */

/* Why a kernel was skipped or refused; equal texts are stored once. */
void receipts_reason(uint32_t slot, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A note about the whole process: stored once, and printed once on stderr. */
void receipts_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Around fork(): the child opens its own file on its first count. */
void receipts_before_fork(void);
void receipts_after_fork(bool child);

#endif
