/* Counters per kernel in a file that is mapped shared: what was counted is on record even if the program crashes. */
#ifndef MAKEWAY_RECEIPTS_H
#define MAKEWAY_RECEIPTS_H

#include <stdbool.h>
#include <stdint.h>

enum outcome { PLAIN, PADDED, REFUSED, SKIPPED, PRIORITISED, OUTCOMES };
enum { NO_SLOT = 0 }; /* launches of kernels that found no room are counted together */

/* Keep where to write, before the program can change its environment. */
void receipts_capture(const char *directory, const char *rank);

/* The slot of a kernel, made on first use. */
uint32_t receipts_slot(const char *kernel, bool comm);

void receipts_count(uint32_t slot, enum outcome outcome);
void receipts_bytes(uint32_t slot, uint32_t asked, uint32_t given);

/* Why a kernel was skipped or refused; the same words are kept once. */
void receipts_reason(uint32_t slot, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Something about the whole process: kept once, and said once on stderr. */
void receipts_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Around fork(): the child gets a file of its own on its first count. */
void receipts_before_fork(void);
void receipts_after_fork(bool child);

#endif
