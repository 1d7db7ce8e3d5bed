#define _GNU_SOURCE
#include "channels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi.h"
#include "tally.h"

enum { VERSION = 2, TRIES = 64 };

/* channels.py writes this layout. */
struct generation {
    uint64_t checksum; /* FNV-1a of the rest */
    uint64_t from_call;
    uint32_t rules;
    uint32_t reserved;
    struct channel_rule rule[RULES];
};

struct channels_file {
    char magic[8];
    uint32_t version;
    uint32_t most_channels; /* that communicators have: set in the environment before the program started */
    _Atomic uint32_t generations;
    char reserved[44];
    struct generation generation[GENERATIONS];
};

_Static_assert(sizeof(struct channel_rule) == 24 && sizeof(struct generation) == 792, "channels.py");
_Static_assert(sizeof(struct channels_file) == 64 + GENERATIONS * 792, "channels.py");

static struct channels_file *rules;
static _Atomic uint32_t whole; /* generations that have been checked */
static _Atomic uint32_t tries; /* to read the next one */

/* --- the file ------------------------------------------------------------------------------ */

/* Whoever can write the file decides about the program's collectives. */
static const char *unsafe(int file) {
    struct stat facts;
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode))
        return "it is no plain file";
    if ((facts.st_uid != geteuid() && facts.st_uid != 0) || facts.st_mode & 022)
        return "other users can write it";
    return facts.st_size == sizeof(struct channels_file) ? NULL : "it is cut short or too long";
}

static const char *wrong_header(const struct channels_file *file) {
    if (memcmp(file->magic, "MKWCHANS", 8) != 0)
        return "it is no file of channel rules";
    return file->version == VERSION ? NULL : "it is of another version than this plugin";
}

const char *channels_open(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return strerror(errno);
    const char *wrong = unsafe(file);
    void *mapped = wrong ? MAP_FAILED : mmap(NULL, sizeof(struct channels_file), PROT_READ, MAP_SHARED, file, 0);
    if (!wrong && mapped == MAP_FAILED)
        wrong = strerror(errno);
    close(file);
    if (wrong)
        return wrong;
    wrong = wrong_header(mapped);
    if (wrong)
        munmap(mapped, sizeof(struct channels_file));
    else
        rules = mapped;
    return wrong;
}

/* --- generations --------------------------------------------------------------------------- */

static uint64_t checksum_of(const struct generation *generation) {
    const uint8_t *at = (const uint8_t *)&generation->from_call, *end = (const uint8_t *)(generation + 1);
    uint64_t value = 0xcbf29ce484222325u;
    for (; at < end; at++)
        value = (value ^ *at) * 0x100000001b3u;
    return value;
}

static bool possible(const struct channel_rule *rule) {
    bool neither = rule->algorithm == AS_IT_IS && rule->protocol == AS_IT_IS;
    bool both = rule->algorithm >= 0 && rule->algorithm < MW_ALGORITHMS && rule->protocol >= 0 &&
                rule->protocol < MW_PROTOCOLS;
    return (neither || both) && (rule->kind < MW_KINDS || rule->kind == ANY_KIND) &&
           rule->channels <= rules->most_channels;
}

static bool is_whole(const struct generation *generation) {
    if (generation->rules > RULES || generation->checksum != checksum_of(generation))
        return false;
    for (uint32_t at = 0; at < generation->rules; at++)
        if (!possible(&generation->rule[at]))
            return false;
    return true;
}

static void give_up(void) {
    tally_note(BAD_GENERATION);
    dprintf(STDERR_FILENO, "makeway: a change of the channel rules is damaged; it and later ones are left out\n");
}

/* The number may be seen before the generation itself: then a later call reads it. One that stays unreadable is not
 * tried for ever, and hides those behind it. */
static uint32_t check_more(uint32_t published) {
    uint32_t known = atomic_load(&whole);
    while (known < published && atomic_load_explicit(&tries, memory_order_relaxed) < TRIES) {
        if (!is_whole(&rules->generation[known])) {
            if (atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) == TRIES - 1)
                give_up();
            break;
        }
        if (atomic_compare_exchange_strong(&whole, &known, known + 1)) {
            atomic_store(&tries, 0);
            known++;
        }
    }
    return atomic_load(&whole);
}

uint32_t channels_generations(void) {
    if (!rules)
        return 0;
    uint32_t published = atomic_load_explicit(&rules->generations, memory_order_acquire);
    uint32_t known = atomic_load_explicit(&whole, memory_order_acquire);
    published = published < GENERATIONS ? published : GENERATIONS;
    return __builtin_expect(known >= published, 1) ? known : check_more(published);
}

uint32_t channels_late(uint32_t seen, uint32_t published, uint64_t call) {
    uint32_t late = 0;
    for (; seen < published; seen++)
        late += rules->generation[seen].from_call < call;
    return late;
}

const struct channel_rule *channels_find(uint32_t published, uint64_t call, int kind, size_t bytes) {
    while (published && rules->generation[published - 1].from_call > call)
        published--;
    if (!published)
        return NULL;
    const struct generation *generation = &rules->generation[published - 1];
    for (uint32_t at = 0; at < generation->rules; at++) {
        const struct channel_rule *rule = &generation->rule[at];
        if ((rule->kind == kind || rule->kind == ANY_KIND) && rule->least_bytes <= bytes && bytes <= rule->most_bytes)
            return rule;
    }
    return NULL;
}
