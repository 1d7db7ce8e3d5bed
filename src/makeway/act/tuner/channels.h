/* The rules of the tuner: a file that channels.py writes and appends to while the job runs.
 *
 * It is a list of generations. A published one never changes, so no reader sees half of one. Each holds from a number of
 * calls on, counted in every communicator: all ranks must give one collective the same channels, and they agree on such
 * a number, not on a time. */
#ifndef MAKEWAY_TUNER_CHANNELS_H
#define MAKEWAY_TUNER_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GENERATIONS = 1024, RULES = 32, ANY_KIND = 255, AS_IT_IS = -1, ONLY_SIMPLE = 1 };

struct channel_rule {
    uint64_t least_bytes, most_bytes; /* both included */
    uint8_t kind;
    int8_t algorithm, protocol; /* both or neither */
    uint8_t flags;              /* ONLY_SIMPLE: calls for which NCCL takes LL or LL128 are left to it */
    uint16_t channels;          /* 0: NCCL's own number */
    uint16_t reserved;
};

/* Maps the file, once. NULL, or why its rules cannot be used. */
const char *channels_open(const char *path);

/* The number of published generations that are whole. */
uint32_t channels_generations(void);

/* The generations in seen..published whose first call has passed already. */
uint32_t channels_late(uint32_t seen, uint32_t published, uint64_t call);

/* The first rule for a call of a communicator; NULL: NCCL decides. */
const struct channel_rule *channels_find(uint32_t published, uint64_t call, int kind, size_t bytes);

#endif
