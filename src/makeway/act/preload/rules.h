/* The launch rules (a file written by rules.py) and the matching of kernel names. */
#ifndef MAKEWAY_RULES_H
#define MAKEWAY_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_LAUNCH_RULES = 256, MOST_COMM_PATTERNS = 1024, MOST_RULE_SETS = 64, LONGEST_PATTERN = 1024 };
enum { LARGEST_FILE = 2 << 20 };
enum rule_kind { RULE_PAD, RULE_BLOCKS };

struct pattern { /* points into the file: not NUL-terminated */
    const char *text;
    uint32_t length;
};

struct rule {
    struct pattern pattern;
    enum rule_kind kind;
    uint32_t value;
};

/* What is in force together; one set is chosen at a time. */
struct rule_set {
    bool raise_comm_priority;
    uint32_t first, end; /* of its launch rules */
};

struct rules {
    bool any_code;
    uint32_t sets;
    uint32_t launches; /* of all sets */
    uint32_t comms;
    struct rule_set set[MOST_RULE_SETS];
    struct rule launch[MOST_LAUNCH_RULES];
    struct pattern comm[MOST_COMM_PATTERNS];
};

/* NULL, or why the file is unusable. The rules point into `data`, which must outlive them. */
const char *rules_parse(struct rules *rules, const uint8_t *data, size_t size);

bool rules_comm(const struct rules *rules, const char *name);

/* The first launch rule of a set for a kernel. `name` and `code` (16 hex digits of its code object) are NULL where unknown;
 * without a name no glob matches, not even "*", since the kernel might communicate. */
const struct rule *rules_find(const struct rules *rules, uint32_t set, const char *name, const char *code);

uint64_t rules_hash(const uint8_t *data, size_t size);

#endif
