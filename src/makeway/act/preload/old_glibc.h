// Included first in every file of a prebuilt shim, so that one compiled with a new glibc loads with glibc 2.28 too.
// glibc 2.34 moved libdl and libpthread into libc and gave their functions a new version; the old ones stay.
// glibc 2.33 made fstat a function of its own; the kernel's call has the same layout on 64-bit machines.
#ifndef OLD_GLIBC_H
#define OLD_GLIBC_H

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined __aarch64__
#define FIRST_VERSION "GLIBC_2.17"
#endif

#define OLD_VERSION(name, version) __asm__(".symver " #name "," #name "@" version)
OLD_VERSION(dladdr, FIRST_VERSION);
OLD_VERSION(dlclose, FIRST_VERSION);
OLD_VERSION(dlerror, FIRST_VERSION);
OLD_VERSION(dlopen, FIRST_VERSION);
OLD_VERSION(dlvsym, FIRST_VERSION);
OLD_VERSION(pthread_once, FIRST_VERSION);

static inline int old_fstat(int file, struct stat *facts)
{
    return (int)syscall(SYS_fstat, file, facts);
}
#define fstat(file, facts) old_fstat(file, facts)

#endif
