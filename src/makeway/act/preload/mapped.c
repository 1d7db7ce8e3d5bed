#define _GNU_SOURCE
#include "mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LONGEST_PATH = 4096 };

static char directory[LONGEST_PATH];
static int32_t rank = NO_RANK;

/* The rank that a launcher gave to this process, as text; NULL without one. */
static const char *rank_text(void) {
    /* As rank_of() in sitecustomize.py: a Slurm batch script has a SLURM_PROCID, and is no rank. */
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    const char *text = NULL;
    for (int at = 0; at < (getenv("SLURM_STEP_ID") ? 4 : 3) && !text; at++)
        text = getenv(names[at]);
    return text;
}

static int32_t rank_of(const char *text) {
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : NO_RANK;
    return text && end != text && *end == '\0' && value >= 0 && value <= INT32_MAX ? (int32_t)value : NO_RANK;
}

void mapped_capture(void) {
    const char *where = getenv("MAKEWAY_RECEIPTS");
    if (where && strlen(where) < sizeof directory)
        strcpy(directory, where);
    rank = rank_of(rank_text());
}

/* A file that must stay smaller ends the program with SIGXFSZ as soon as it grows too far. */
static bool may_grow(size_t bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes;
}

static int create_file(const char *stem, size_t bytes) {
    if (!may_grow(bytes)) {
        errno = EFBIG;
        return -1;
    }
    char path[LONGEST_PATH + 64];
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint64_t)(uintptr_t)&random;
    snprintf(path, sizeof path, "%s/%s-%ld-%016llx", directory, stem, (long)getpid(), (unsigned long long)random);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return -1;
    /* Allocate all blocks now: a disk that fills up later would kill the program with SIGBUS. */
    int wrong = posix_fallocate(file, 0, (off_t)bytes);
    if (wrong) {
        unlink(path);
        close(file);
        errno = wrong;
        return -1;
    }
    return file;
}

void *mapped_open(const char *stem, size_t bytes, uint32_t version, void *last_resort) {
    int file = directory[0] ? create_file(stem, bytes) : -1;
    if (directory[0] && file < 0)
        dprintf(STDERR_FILENO, "makeway: no receipts in %s: %s\n", directory, strerror(errno));
    void *mapped =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    struct mapped_header *header = mapped == MAP_FAILED ? last_resort : mapped;
    header->version = version;
    header->pid = (uint32_t)getpid();
    header->rank = rank;
    return header;
}
