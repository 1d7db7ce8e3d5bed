#define _GNU_SOURCE
#include "receipts.h"
#include "mapped.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 1 << 20, SLOTS = 2047, LONGEST_NAME = 4096, LONGEST_TEXT = 512, VERSION = 2 };

/* receipts.py reads this layout. Offsets are from the start of the file; 0 is "none". */
struct header {
    struct mapped_header start;
    _Atomic uint32_t slots; /* in use, including the first */
    _Atomic uint32_t end;   /* of the texts */
    _Atomic uint32_t notes; /* list of texts */
    _Atomic uint64_t graphs; /* launched */
    char reserved[24];
};

struct text {
    uint32_t next;
    uint32_t length;
    char letters[];
};

struct file {
    struct header header;
    struct slot slot[SLOTS];
    char texts[FILE_BYTES - sizeof(struct header) - SLOTS * sizeof(struct slot)];
};

_Static_assert(sizeof(struct header) == 64 && sizeof(struct slot) == 64, "receipts.py");
_Static_assert(sizeof(struct file) == FILE_BYTES, "receipts.py");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct file *) current;
_Atomic(struct slot *) receipts_slots;
static struct file *parents; /* after fork: holds the names of the slots that the child inherited */

/* --- the file ------------------------------------------------------------------------------ */

/* The parent goes on writing. A text is whole before `end` passes it, and in a list only after that: so what the lists
 * held before `end` is read lies below it. */
static void copy_names(struct file *made, const struct file *from) {
    uint32_t slots = atomic_load(&from->header.slots);
    slots = slots < SLOTS ? slots : SLOTS;
    for (uint32_t at = 0; at < slots; at++) {
        made->slot[at].name = from->slot[at].name;
        made->slot[at].comm = from->slot[at].comm;
        made->slot[at].set = from->slot[at].set;
        made->slot[at].hash = from->slot[at].hash;
        atomic_store(&made->slot[at].reasons, atomic_load(&from->slot[at].reasons));
    }
    atomic_store(&made->header.notes, atomic_load(&from->header.notes));
    uint32_t first = (uint32_t)offsetof(struct file, texts), end = atomic_load(&from->header.end);
    end = end >= first && end <= FILE_BYTES ? end : first;
    memcpy(made->texts, from->texts, end - first);
    atomic_store(&made->header.end, end);
    atomic_store(&made->header.slots, slots);
}

static struct file *open_locked(void) {
    struct file *file = atomic_load(&current);
    if (file)
        return file;
    static struct file last_resort;
    file = mapped_open("launch", FILE_BYTES, VERSION, &last_resort);
    atomic_store(&file->header.end, (uint32_t)offsetof(struct file, texts));
    atomic_store(&file->header.slots, 1);
    if (parents)
        copy_names(file, parents);
    memcpy(file->header.start.magic, "MKWRCPTS", 8);
    atomic_store_explicit(&current, file, memory_order_release);
    atomic_store_explicit(&receipts_slots, file->slot, memory_order_release);
    return file;
}

static struct file *opened(void) {
    struct file *file = atomic_load_explicit(&current, memory_order_acquire);
    if (file)
        return file;
    pthread_mutex_lock(&lock);
    file = open_locked();
    pthread_mutex_unlock(&lock);
    return file;
}

struct slot *receipts_open(void) {
    return opened()->slot;
}

void receipts_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void receipts_after_fork(bool child) {
    struct file *file = atomic_load(&current);
    if (child && file) {
        parents = file; /* stays mapped: the parent's threads do not exist here */
        atomic_store(&current, NULL);
        atomic_store(&receipts_slots, NULL);
    }
    pthread_mutex_unlock(&lock);
}

/* --- texts --------------------------------------------------------------------------------- */

static struct text *text_at(struct file *file, uint32_t offset) {
    return (struct text *)((char *)file + offset);
}

static uint32_t add_text(struct file *file, const char *letters, uint32_t next) {
    uint32_t length = (uint32_t)strnlen(letters, LONGEST_NAME), offset = atomic_load(&file->header.end);
    uint32_t bytes = (uint32_t)(sizeof(struct text) + length + 3) & ~3u;
    if (bytes > FILE_BYTES - offset)
        return 0;
    struct text *text = text_at(file, offset);
    text->next = next;
    text->length = length;
    memcpy(text->letters, letters, length);
    atomic_store_explicit(&file->header.end, offset + bytes, memory_order_release);
    return offset;
}

static bool same_text(const struct text *text, const char *letters) {
    size_t length = strnlen(letters, LONGEST_NAME);
    return text->length == length && memcmp(text->letters, letters, length) == 0;
}

static bool add_once(struct file *file, _Atomic uint32_t *list, const char *letters) {
    uint32_t first = atomic_load(list);
    for (uint32_t at = first; at; at = text_at(file, at)->next)
        if (same_text(text_at(file, at), letters))
            return false;
    uint32_t added = add_text(file, letters, first);
    if (added)
        atomic_store_explicit(list, added, memory_order_release);
    return added != 0;
}

void receipts_reason(uint32_t slot, const char *format, ...) {
    char letters[LONGEST_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(letters, sizeof letters, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    struct file *file = open_locked();
    add_once(file, &file->slot[slot].reasons, letters);
    pthread_mutex_unlock(&lock);
}

void receipts_note(const char *format, ...) {
    char letters[LONGEST_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(letters, sizeof letters, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    struct file *file = open_locked();
    bool fresh = add_once(file, &file->header.notes, letters);
    pthread_mutex_unlock(&lock);
    if (fresh)
        dprintf(STDERR_FILENO, "makeway: %s\n", letters);
}

/* --- counters ------------------------------------------------------------------------------ */

static uint32_t hash_of(const char *letters) {
    uint32_t value = 2166136261u;
    for (; *letters; letters++)
        value = (value ^ (unsigned char)*letters) * 16777619u;
    return value;
}

static uint32_t slot_locked(struct file *file, const char *kernel, bool comm, uint32_t set) {
    uint32_t hash = hash_of(kernel), slots = atomic_load(&file->header.slots), name = 0;
    for (uint32_t at = 1; at < slots; at++)
        if (file->slot[at].hash == hash && same_text(text_at(file, file->slot[at].name), kernel)) {
            if (file->slot[at].set == set)
                return at;
            name = file->slot[at].name;
        }
    if (!name && slots < SLOTS)
        name = add_text(file, kernel, 0);
    if (!name || slots >= SLOTS)
        return NO_SLOT;
    file->slot[slots].name = name;
    file->slot[slots].hash = hash;
    file->slot[slots].comm = comm;
    file->slot[slots].set = (uint16_t)set;
    atomic_store_explicit(&file->header.slots, slots + 1, memory_order_release);
    return slots;
}

uint32_t receipts_slot(const char *kernel, bool comm, uint32_t set) {
    pthread_mutex_lock(&lock);
    uint32_t slot = slot_locked(open_locked(), kernel, comm, set);
    pthread_mutex_unlock(&lock);
    return slot;
}

void receipts_graph_launched(void) {
    struct file *file = atomic_load_explicit(&current, memory_order_acquire);
    if (!file) {
        pthread_mutex_lock(&lock);
        file = open_locked();
        pthread_mutex_unlock(&lock);
    }
    atomic_fetch_add_explicit(&file->header.graphs, 1, memory_order_relaxed);
}

uint64_t receipts_graph_launches(void) {
    struct file *file = atomic_load_explicit(&current, memory_order_acquire);
    return file ? atomic_load_explicit(&file->header.graphs, memory_order_relaxed) : 0;
}

void receipts_grid(uint32_t slot, uint32_t blocks) {
    _Atomic uint64_t *grids = &receipts_at(slot)->bytes;
    uint64_t before = atomic_load_explicit(grids, memory_order_relaxed), most = before >> 32;
    uint64_t both = (most > blocks ? most : blocks) << 32 | blocks;
    if (before != both)
        atomic_store_explicit(grids, both, memory_order_relaxed);
}
