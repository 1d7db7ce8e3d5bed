/* A plug-in whose constructor looks a launch function up, while the loader is busy loading it; and, compiled with
 * EMPTY, one that does nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#ifdef EMPTY
int nothing;
#else
__attribute__((constructor)) static void look_up(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *other = dlopen(getenv("EMPTY_PLUGIN"), RTLD_LAZY);
    if (!driver || !other)
        abort();
    dlclose(other); /* whoever remembers symbols must look again after a library was unloaded */
    if (!dlsym(driver, "cuLaunchKernel"))
        abort();
    dlclose(driver);
}
#endif
