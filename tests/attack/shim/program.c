/* Programs that are hard on whatever stands between them and the driver, one per first argument. Prints the result of
 * each launch; knows nothing of the shim.
 *
 *   constructors PLUGIN TIMES   a plug-in's constructor looks a launch function up while another thread does the same
 *   two-drivers OTHER           a second driver in the same process, each with kernels of its own
 *   moves                       the driver is closed and opened again at another address
 *   dlerror                     looks functions up, there or not, and asks for the error each time
 *   null-attributes KERNEL      a launch that counts an attribute and gives none
 *   image ELF | file ELF        a module from memory (an unreadable page on either side) or from a file, one launch
 *   launch TIMES                launches alone
 *   little-memory               a launch when no address space is left for as much as a megabyte
 *   forks TIMES                 children launch kernels while another thread of the parent launches the same
 *   closes TIMES                two threads open the driver, launch and close it again */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

static void *open_driver(const char *name) {
    void *driver = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    return driver;
}

static void *symbol(void *driver, const char *name) {
    void *address = dlsym(driver, name);
    if (!address) {
        fprintf(stderr, "no %s\n", name);
        exit(98);
    }
    return address;
}

static void *kernel(void *driver, void *module, const char *name) {
    void *function = NULL;
    ((mw_get_kernel)symbol(driver, "cuModuleGetFunction"))(&function, module, name);
    return function;
}

static mw_result launch(mw_launch through, void *function) {
    return through(function, 1, 1, 1, 128, 1, 1, 64, NULL, NULL, NULL);
}

/* --- constructors ---------------------------------------------------------------------------- */

static atomic_bool done;
static void *shared_driver;

static void *look_up_again_and_again(void *nothing) {
    while (!done)
        symbol(shared_driver, "cuLaunchKernel");
    return nothing;
}

static void constructors(const char *plugin, int times) {
    pthread_t other;
    shared_driver = open_driver("libcuda.so.1");
    pthread_create(&other, NULL, look_up_again_and_again, NULL);
    for (int at = 0; at < times; at++) {
        dlclose(open_driver(plugin));
        usleep((useconds_t)at % 50); /* the other thread is somewhere in its look-up */
    }
    done = true;
    pthread_join(other, NULL);
    printf("%d\n", launch((mw_launch)symbol(shared_driver, "cuLaunchKernel"), kernel(shared_driver, "m", "gemm")));
}

/* --- two drivers ----------------------------------------------------------------------------- */

static void two_drivers(const char *path) {
    void *first = open_driver("libcuda.so.1");
    mw_launch launch_first = (mw_launch)symbol(first, "cuLaunchKernel");
    void *gemm = kernel(first, "module", "gemm_first");
    printf("%d\n", launch(launch_first, gemm));
    void *second = open_driver(path);
    mw_launch launch_second = (mw_launch)symbol(second, "cuLaunchKernel");
    void *other = kernel(second, "module", "gemm_second");
    for (int at = 0; at < 2; at++) {
        printf("%d\n", launch(launch_second, other));
        printf("%d\n", launch(launch_first, gemm));
    }
}

/* --- one driver, closed and opened again, and what dlerror says ------------------------------ */

static void moves(void) {
    void *before = NULL, *driver;
    for (int at = 0; at < 3; at++) {
        Dl_info facts;
        driver = open_driver("libcuda.so.1");
        void *own = symbol(driver, "cuModuleGetFunction");
        if (!dladdr(own, &facts) || facts.dli_fbase == before)
            exit(94);
        before = facts.dli_fbase;
        printf("%d\n", launch((mw_launch)symbol(driver, "cuLaunchKernel"), kernel(driver, "module", "gemm")));
        dlclose(driver);
        mmap(before, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* a hint: where the driver was is taken */
    }
}

static void errors(void) {
    void *driver = open_driver("libcuda.so.1");
    static const char *const names[] = {"cuLaunchKernel", "cuLaunchKernelEx", "cuModuleUnload", "cuLaunchKernel"};
    for (int at = 0; at < 4; at++) {
        dlerror();
        printf("%d\n", !dlsym(driver, names[at]) || dlerror());
    }
    dlsym(driver, "cuCtxDestroy_v2_that_never_was");
    printf("%d\n", !dlerror());
    printf("%d\n", dlsym(RTLD_DEFAULT, "cuLaunchKernel") || !dlerror()); /* loaded, but for us alone */
    printf("%d\n", dlsym(RTLD_NEXT, "cuLaunchKernel") || !dlerror());
}

/* --- attributes ------------------------------------------------------------------------------ */

static void null_attributes(const char *name) {
    void *driver = open_driver("libcuda.so.1"), *function = kernel(driver, "module", name);
    struct mw_config config = {.grid = {1, 1, 1}, .block = {128, 1, 1}, .smem_bytes = 64, .attribute_count = 3};
    printf("%d\n", ((mw_launch_ex)symbol(driver, "cuLaunchKernelEx"))(&config, function, NULL, NULL));
}

/* --- code objects ---------------------------------------------------------------------------- */

static void *between_unreadable_pages(const char *path) {
    enum { AROUND = 16 << 20 };
    struct stat facts;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &facts) != 0)
        exit(97);
    char *space = mmap(NULL, 2 * AROUND + (size_t)facts.st_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mmap(space + AROUND, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
}

static void load(const char *how, const char *path) {
    void *driver = open_driver("libcuda.so.1"), *module = NULL;
    if (strcmp(how, "image") == 0)
        ((mw_load)symbol(driver, "cuModuleLoadData"))(&module, between_unreadable_pages(path));
    else
        ((mw_load)symbol(driver, "cuModuleLoad"))(&module, path);
    printf("%d\n", launch((mw_launch)symbol(driver, "cuLaunchKernel"), kernel(driver, module, "gemm")));
}

/* --- little of everything -------------------------------------------------------------------- */

static void launches(int times) {
    void *driver = open_driver("libcuda.so.1"), *function = kernel(driver, "module", "gemm");
    mw_launch through = (mw_launch)symbol(driver, "cuLaunchKernel");
    for (int at = 0; at < times; at++)
        printf("%d\n", launch(through, function));
}

static void little_memory(void) {
    void *driver = open_driver("libcuda.so.1"), *function = kernel(driver, "module", "gemm");
    mw_launch through = (mw_launch)symbol(driver, "cuLaunchKernel");
    printf("\n");
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        exit(97);
    fclose(file);
    rlim_t most = (rlim_t)pages * (rlim_t)getpagesize() + (256 << 10);
    setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
    for (int at = 0; at < 3; at++)
        printf("%d\n", launch(through, function));
}

/* --- storms ---------------------------------------------------------------------------------- */

enum { NEW_KERNELS = 150, CHILDREN = 4 };

static mw_launch_cooperative cooperative;
static mw_launch_ex extended;
static void *new_kernels[NEW_KERNELS];
static atomic_bool forking;

static mw_result launch_in_clusters(void *function) {
    struct mw_attribute cluster = {.id = MW_ATTRIBUTE_CLUSTER, .value.number = 1};
    struct mw_config config = {.grid = {1, 1, 1}, .block = {128, 1, 1}, .attributes = &cluster, .attribute_count = 1};
    return extended(&config, function, NULL, NULL);
}

/* Each kernel is skipped for a second reason, one after the other while the children begin. */
static void *launch_all_in_clusters(void *nothing) {
    for (int at = 0; at < NEW_KERNELS; at++) {
        launch_in_clusters(new_kernels[at]);
        for (int spin = 0; forking && spin < 100000; spin++)
            atomic_signal_fence(memory_order_seq_cst);
    }
    return nothing;
}

/* Takes no lock of the driver's: another thread may have held it when this process began. */
static int in_child(void) {
    mw_result wrong = 0;
    alarm(3); /* one that hangs is a failure */
    for (int at = 0; at < NEW_KERNELS; at++)
        wrong |= launch_in_clusters(new_kernels[at]);
    return wrong ? 1 : 0;
}

static void forks(int times) {
    void *driver = open_driver("libcuda.so.1");
    char name[64];
    cooperative = (mw_launch_cooperative)symbol(driver, "cuLaunchCooperativeKernel");
    extended = (mw_launch_ex)symbol(driver, "cuLaunchKernelEx");
    launch((mw_launch)symbol(driver, "cuLaunchKernel"), kernel(driver, "own", "gemm_before_the_storm"));
    for (int at = 0; at < times; at++) {
        pthread_t other;
        pid_t children[CHILDREN];
        for (int which = 0; which < NEW_KERNELS; which++) {
            snprintf(name, sizeof name, "gemm_%d_of_round_%d", which, at);
            new_kernels[which] = kernel(driver, "module", name);
        }
        for (int which = 0; which < NEW_KERNELS; which++)
            cooperative(new_kernels[which], 1, 1, 1, 128, 1, 1, 64, NULL, NULL);
        fflush(stdout);
        forking = true;
        pthread_create(&other, NULL, launch_all_in_clusters, NULL);
        for (int child = 0; child < CHILDREN; child++) {
            children[child] = fork();
            if (children[child] == 0)
                _exit(in_child());
        }
        for (int child = 0, status = 0; child < CHILDREN; child++) {
            waitpid(children[child], &status, 0);
            printf("%d\n", status);
        }
        forking = false;
        pthread_join(other, NULL);
        ((mw_one_handle)symbol(driver, "cuModuleUnload"))("module");
    }
}

static void *open_and_close(void *times) {
    for (long at = 0; at < (long)times; at++) {
        void *driver = open_driver("libcuda.so.1");
        mw_launch through = (mw_launch)symbol(driver, "cuLaunchKernel");
        if (launch(through, kernel(driver, "module", "gemm")) != MW_SUCCESS)
            exit(96);
        dlclose(driver);
    }
    return NULL;
}

static void closes(long times) {
    pthread_t ids[2];
    for (int at = 0; at < 2; at++)
        pthread_create(&ids[at], NULL, open_and_close, (void *)times);
    for (int at = 0; at < 2; at++)
        pthread_join(ids[at], NULL);
    printf("0\n");
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "", *argument = count > 2 ? words[2] : "";
    if (strcmp(what, "constructors") == 0)
        constructors(argument, atoi(words[3]));
    else if (strcmp(what, "two-drivers") == 0)
        two_drivers(argument);
    else if (strcmp(what, "moves") == 0)
        moves();
    else if (strcmp(what, "dlerror") == 0)
        errors();
    else if (strcmp(what, "null-attributes") == 0)
        null_attributes(argument);
    else if (strcmp(what, "image") == 0 || strcmp(what, "file") == 0)
        load(what, argument);
    else if (strcmp(what, "launch") == 0)
        launches(atoi(argument));
    else if (strcmp(what, "little-memory") == 0)
        little_memory();
    else if (strcmp(what, "forks") == 0)
        forks(atoi(argument));
    else if (strcmp(what, "closes") == 0)
        closes(atol(argument));
    else
        return 95;
    return 0;
}
