/* A file of fixed size in a receipts directory, mapped shared: what is counted there survives a crash of the program. */
#ifndef MAKEWAY_MAPPED_H
#define MAKEWAY_MAPPED_H

#include <stddef.h>
#include <stdint.h>

enum { NO_RANK = -1 };

/* How every such file starts. The magic is written last: a file without it is not complete. */
struct mapped_header {
    char magic[8];
    uint32_t version;
    uint32_t pid;
    int32_t rank;
};

/* Remember $MAKEWAY_RECEIPTS and the rank before the program can change its environment. */
void mapped_capture(void);

/* A new file `stem`-PID-RANDOM of zeros, mapped, with version, pid and rank; anonymous memory where there is no directory
 * or it cannot hold the file (which is said on stderr); `last_resort` where there is no memory either. */
void *mapped_open(const char *stem, size_t bytes, uint32_t version, void *last_resort);

#endif
