/* What NCCL asked and what it got, in a file mapped shared; tally.py reads it. */
#ifndef MAKEWAY_TUNER_TALLY_H
#define MAKEWAY_TUNER_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

enum { CHOICES = MW_ALGORITHMS * MW_PROTOCOLS, UNKNOWN_CHOICE = CHOICES }; /* no table, or a larger one */
enum change { CHANNELS_SET, STEERED, UNAVAILABLE, LEFT_TO_LL, CHANGES };
enum { MOST_CHANNELS = 64 };
enum tally_note { NO_RULES = 1, BAD_GENERATION = 2 };

struct answer {
    uint32_t changes; /* one bit for each enum change */
    int channels, algorithm, protocol;
};

void tally_note(enum tally_note note);
void tally_communicator(uint32_t interface, uint32_t ranks);
void tally_generations(uint32_t generations, uint32_t late);
void tally_call(int kind, size_t bytes, int own_choice, const struct answer *answer, uint64_t calls);
void tally_other(void);

void tally_before_fork(void);
void tally_after_fork(bool child);

#endif
