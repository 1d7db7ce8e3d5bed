#define _GNU_SOURCE
#include "tally.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "mapped.h"

enum { VERSION = 2, SIZES = 65 }; /* sizes by the number of their bits */

struct header {
    struct mapped_header start;
    _Atomic uint32_t interface; /* the newest version of the tuner interface in use */
    _Atomic uint32_t communicators;
    _Atomic uint32_t ranks; /* of the largest communicator */
    _Atomic uint64_t calls; /* of the busiest communicator */
    _Atomic uint64_t others; /* calls of kinds that this plugin does not know */
    _Atomic uint32_t generations;
    _Atomic uint32_t late; /* generations that came after their first call, summed over communicators */
    _Atomic uint32_t notes;
    uint32_t reserved;
};

struct cell {
    _Atomic uint64_t own[CHOICES + 1]; /* calls by what NCCL would have taken */
    _Atomic uint64_t changes[CHANGES];
    _Atomic uint64_t last; /* channels << 32 | algorithm + 1 << 8 | protocol + 1 of the last changed call */
    uint64_t reserved[5];
};

struct file {
    struct header header;
    struct cell cell[MW_KINDS][SIZES];
    _Atomic uint64_t given[MOST_CHANNELS + 1]; /* calls by the channels that a rule gave them */
};

_Static_assert(sizeof(struct header) == 64 && sizeof(struct cell) == 256, "tally.py");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct file *) current;

static struct file *open_locked(void) {
    struct file *file = atomic_load(&current);
    if (file)
        return file;
    static struct file last_resort;
    file = mapped_open("tuner", sizeof *file, VERSION, &last_resort);
    memcpy(file->header.start.magic, "MKWTALLY", 8);
    atomic_store_explicit(&current, file, memory_order_release);
    return file;
}

static struct file *opened(void) {
    struct file *file = atomic_load_explicit(&current, memory_order_acquire);
    if (__builtin_expect(file != NULL, 1))
        return file;
    pthread_mutex_lock(&lock);
    file = open_locked();
    pthread_mutex_unlock(&lock);
    return file;
}

void tally_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void tally_after_fork(bool child) {
    if (child)
        atomic_store(&current, NULL); /* the file stays the parent's */
    pthread_mutex_unlock(&lock);
}

/* --- counting ------------------------------------------------------------------------------ */

static void count(_Atomic uint64_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static void raise_to(_Atomic uint32_t *place, uint32_t value) {
    uint32_t before = atomic_load(place);
    while (before < value && !atomic_compare_exchange_weak(place, &before, value))
        ;
}

void tally_note(enum tally_note note) {
    atomic_fetch_or(&opened()->header.notes, note);
}

void tally_communicator(uint32_t interface, uint32_t ranks) {
    struct header *header = &opened()->header;
    atomic_fetch_add(&header->communicators, 1);
    raise_to(&header->interface, interface);
    raise_to(&header->ranks, ranks);
}

void tally_generations(uint32_t generations, uint32_t late) {
    raise_to(&opened()->header.generations, generations);
    atomic_fetch_add(&opened()->header.late, late);
}

void tally_other(void) {
    count(&opened()->header.others);
}

void tally_call(int kind, size_t bytes, int own_choice, const struct answer *answer, uint64_t calls) {
    struct file *file = opened();
    struct cell *cell = &file->cell[kind][bytes ? 64 - __builtin_clzll(bytes) : 0];
    count(&cell->own[own_choice]);
    uint64_t most = atomic_load_explicit(&file->header.calls, memory_order_relaxed);
    while (most < calls && !atomic_compare_exchange_weak_explicit(&file->header.calls, &most, calls,
                                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    if (!answer->changes)
        return;
    for (int change = 0; change < CHANGES; change++)
        if (answer->changes & 1u << change)
            count(&cell->changes[change]);
    if (answer->channels > 0 && answer->channels <= MOST_CHANNELS)
        count(&file->given[answer->channels]);
    uint64_t last = (uint64_t)answer->channels << 32 | (uint32_t)(answer->algorithm + 1) << 8 |
                    (uint32_t)(answer->protocol + 1);
    if (atomic_load_explicit(&cell->last, memory_order_relaxed) != last)
        atomic_store_explicit(&cell->last, last, memory_order_relaxed);
}
