/* Counters per kernel in a file mapped shared, so that counts survive a crash of the program. */
#ifndef MAKEWAY_RECEIPTS_H
#define MAKEWAY_RECEIPTS_H

#include <stdbool.h>
#include <stdint.h>

enum outcome { PLAIN, PADDED, REFUSED, SKIPPED, PRIORITISED, OUTCOMES };
enum { NO_SLOT = 0 }; /* counts kernels that did not fit in the table, together */

/* Remember where to write before the program can change its environment. */
void receipts_capture(const char *directory, const char *rank);

/* The slot of a kernel, created on first use. */
uint32_t receipts_slot(const char *kernel, bool comm);

void receipts_count(uint32_t slot, enum outcome outcome);
void receipts_bytes(uint32_t slot, uint32_t asked, uint32_t given);
void receipts_grid(uint32_t slot, uint32_t blocks); /* of a communication kernel, which is never padded */

/* Why a kernel was skipped or refused; equal texts are stored once. */
void receipts_reason(uint32_t slot, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A note about the whole process: stored once, and printed once on stderr. */
void receipts_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Around fork(): the child opens its own file on its first count. */
void receipts_before_fork(void);
void receipts_after_fork(bool child);

#endif
