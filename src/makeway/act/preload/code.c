/* Which code object each module came from; needed only when a launch rule names code. */
#define _GNU_SOURCE
#include "shim.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 4096 };

static struct {
    const void *handle;
    uint64_t hash;
} known[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int count;

enum { LARGEST_IMAGE = INT32_MAX }; /* code objects are megabytes; more is a header that lies */

/* Moves `end` behind `count` pieces of `size` bytes from `start`; false when that is beyond `most` or wraps. */
static bool reach(uint64_t *end, uint64_t start, uint64_t count, uint64_t size, uint64_t most) {
    uint64_t bytes, last;
    if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(start, bytes, &last) || last > most)
        return false;
    if (last > *end)
        *end = last;
    return true;
}

/* Whether all pages of these bytes can be read. An image in memory may be shorter than its header says, and only the
 * kernel can tell; where it does not answer (seccomp), the header is believed. */
static bool readable(const uint8_t *start, uint64_t bytes) {
    enum { PAGES = 64 };
    char letters[PAGES];
    struct iovec into = {letters, PAGES}, from[PAGES];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)start, end = at + bytes;
    while (at < end) {
        int pages = 0;
        for (; pages < PAGES && at < end; pages++, at = (at / page + 1) * page)
            from[pages] = (struct iovec){(void *)at, 1};
        ssize_t got = process_vm_readv(getpid(), &into, 1, from, (unsigned long)pages, 0);
        if (got != pages)
            return got < 0 && errno != EFAULT;
    }
    return true;
}

/* Drivers take an image without its size: an ELF file ends with its last table or section. 0 where that lies beyond
 * `most` bytes or, in memory, beyond what can be read: the file is truncated. */
static uint64_t elf_bytes(const uint8_t *image, uint64_t most, bool in_memory) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    uint64_t end = sizeof header;
    if (!reach(&end, header.e_phoff, header.e_phnum, header.e_phentsize, most) ||
        !reach(&end, header.e_shoff, header.e_shnum, header.e_shentsize, most) ||
        (in_memory && !readable(image + header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize)))
        return 0;
    for (int at = 0; header.e_shentsize == sizeof(Elf64_Shdr) && at < header.e_shnum; at++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + (uint64_t)at * sizeof section, sizeof section);
        if (section.sh_type != SHT_NOBITS && !reach(&end, section.sh_offset, 1, section.sh_size, most))
            return 0;
    }
    return !in_memory || readable(image, end) ? end : 0;
}

static void remember(const void *handle, uint64_t hash) {
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < count && known[at].handle && known[at].handle != handle)
        at++;
    if (at < MOST) {
        known[at].handle = handle;
        known[at].hash = hash;
        count += at == count;
    }
    pthread_mutex_unlock(&lock);
}

static void learn(const void *handle, const uint8_t *image, uint64_t most, bool in_memory) {
    bool elf = image && (!in_memory || readable(image, sizeof(Elf64_Ehdr))) && memcmp(image, ELFMAG, SELFMAG) == 0 &&
               image[EI_CLASS] == ELFCLASS64;
    uint64_t bytes = elf ? elf_bytes(image, most, in_memory) : 0;
    if (bytes)
        remember(handle, rules_hash(image, bytes));
    else
        receipts_note("a code object is no 64-bit ELF image (a fat binary or PTX): rules that name code do not see it");
}

void code_learn(const void *handle, const void *image) {
    learn(handle, image, LARGEST_IMAGE, true);
}

/* A copy, not a mapping: a file that is cut short while it is read must not end the program with SIGBUS. */
void code_learn_file(const void *handle, const char *path) {
    struct stat facts;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool fits = file >= 0 && fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) &&
                facts.st_size > (off_t)sizeof(Elf64_Ehdr) && facts.st_size <= LARGEST_IMAGE;
    uint8_t *image = fits ? malloc((size_t)facts.st_size) : NULL;
    ssize_t got = image ? pread(file, image, (size_t)facts.st_size, 0) : -1;
    if (got > (ssize_t)sizeof(Elf64_Ehdr))
        learn(handle, image, (uint64_t)got, false);
    free(image);
    if (file >= 0)
        close(file);
}

void code_forget(const void *handle) {
    pthread_mutex_lock(&lock);
    for (int at = 0; at < count; at++)
        if (known[at].handle == handle)
            known[at].handle = NULL;
    pthread_mutex_unlock(&lock);
}

bool code_find(const void *handle, char hex[17]) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < count && !found; at++)
        if (known[at].handle == handle) {
            snprintf(hex, 17, "%016llx", (unsigned long long)known[at].hash);
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

void code_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void code_after_fork(void) {
    pthread_mutex_unlock(&lock);
}
