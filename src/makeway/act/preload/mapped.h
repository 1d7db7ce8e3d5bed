/* A file of fixed size in a receipts directory, mapped shared: what is counted there survives a crash of the program. */
#ifndef MAKEWAY_MAPPED_H
#define MAKEWAY_MAPPED_H

#include <stddef.h>
#include <stdint.h>

enum { NO_RANK = -1 };

/* The rank that a launcher gave to this process, as text; NULL without one. */
const char *mapped_rank_text(void);
int32_t mapped_rank(const char *text);

/* A new file `stem`-PID-RANDOM of zeros, mapped; anonymous memory where `directory` is empty or cannot hold it (which is
 * said on stderr); NULL where there is no memory either. */
void *mapped_open(const char *directory, const char *stem, size_t bytes);

#endif
