/* Two libraries that export the same name, and a program that asks the first what comes next. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#if defined(SECOND)
int which(void) {
    return 2;
}
#elif defined(FIRST)
int which(void) {
    return 1;
}

int next_of_first(void) {
    int (*found)(void) = (int (*)(void))dlsym(RTLD_NEXT, "which");
    return found ? found() : 0;
}

int driver_of_first(void *where) {
    return dlsym(where, "cuLaunchKernel") != NULL;
}
#else
int next_of_first(void);
int driver_of_first(void *where);

int main(void) {
    int (*found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "which");
    printf("%d\n%d\n%d\n%d\n", next_of_first(), found ? found() : 0, driver_of_first(RTLD_DEFAULT),
           driver_of_first(RTLD_NEXT));
    return 0;
}
#endif
