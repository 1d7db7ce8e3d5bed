/* A program that launches kernels as its arguments say, knowing nothing of the shim. Prints the result of each step.
 *
 *   via dlsym|proc|proc-ptsz|proc-future|old-proc|old-proc-future|linked   how the launch functions are found
 *   kernel NAME | handle NAME         a new CUfunction or CUkernel; numbered from 0
 *   launch N SMEM | ex N SMEM WHAT | cooperative N SMEM
 *                                     WHAT: plain, priority, cooperative, cluster:BLOCKS, carve:PERCENT, mode:MODE
 *   bad-grid N SMEM                   a launch that no driver takes
 *   grid N SMEM BLOCKS                a launch of so many blocks
 *   limit N BYTES | set N ATTRIBUTE VALUE      the program's own limit of dynamic shared memory, or another attribute
 *   occupancy N SMEM | available N BLOCKS | potential N SMEM | clusters N SMEM BLOCKS     prints the driver's answer
 *   context N | unload | reopen | fork | crash
 *   threads COUNT LAUNCHES            that many threads launch kernel 0 and kernel 1 in turn, 64 bytes each
 *   churn COUNT LAUNCHES              the same while the main thread keeps unloading another module
 *   turns COUNT LAUNCHES              the same while the main thread keeps choosing rule sets 0 and 1
 *   rules SET                         chooses a rule set of the shim, as Python does; prints its answer
 *   alternate COUNT                   chooses set 0 or 1 and launches kernel 0, so often; prints by how many KiB memory grew
 *   graph                             launches a graph */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

static void *library;
static void *kernels[512];
static int kernel_count;
static mw_launch launch;
static mw_launch_ex launch_ex;
static mw_launch_cooperative launch_cooperative;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "no %s\n", name);
    return found;
}

#define CALL(type, name) ((type)symbol(name))

static void look_up(uint64_t flags, int version) {
    int status = 0;
    mw_address_v2 first = CALL(mw_address_v2, "cuGetProcAddress_v2"), look = NULL;
    void *found = NULL;
    first("cuGetProcAddress", (void **)&look, 12000, 0, &status); /* as the CUDA runtime does */
    look("cuLaunchKernel", (void **)&launch, version, flags, &status);
    if (look("cuLaunchKernelEx", &found, version, flags, &status) == MW_SUCCESS)
        launch_ex = (mw_launch_ex)found;
}

static void look_up_as_before_12(int version) {
    mw_address_v1 look = CALL(mw_address_v1, "cuGetProcAddress");
    look("cuLaunchKernel", (void **)&launch, version, 0);
}

#ifdef LINKED
mw_result cuLaunchKernel(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                         void **);
mw_result cuLaunchKernelEx(const struct mw_config *, void *, void **, void **);
#endif

static void open_library(const char *via) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    if (strcmp(via, "proc") == 0)
        look_up(0, 12000);
    else if (strcmp(via, "proc-ptsz") == 0)
        look_up(MW_PER_THREAD_STREAM, 12000);
    else if (strcmp(via, "proc-future") == 0)
        look_up(0, 99000);
    else if (strcmp(via, "old-proc") == 0)
        look_up_as_before_12(11040);
    else if (strcmp(via, "old-proc-future") == 0)
        look_up_as_before_12(99000);
#ifdef LINKED
    else if (strcmp(via, "linked") == 0) {
        launch = cuLaunchKernel;
        launch_ex = cuLaunchKernelEx;
    }
#endif
    else {
        launch = CALL(mw_launch, "cuLaunchKernel");
        launch_ex = (mw_launch_ex)dlsym(library, "cuLaunchKernelEx");
    }
    launch_cooperative = CALL(mw_launch_cooperative, "cuLaunchCooperativeKernel");
}

static mw_result plain(void *kernel, uint32_t grid, uint32_t smem) {
    return launch(kernel, grid, 1, 1, 128, 1, 1, smem, NULL, NULL, NULL);
}

static struct mw_attribute attribute_of(const char *what) {
    struct mw_attribute attribute = {.id = MW_ATTRIBUTE_COOPERATIVE, .value.number = 1};
    const char *number = strchr(what, ':');
    if (strcmp(what, "priority") == 0) {
        attribute.id = MW_ATTRIBUTE_PRIORITY;
        attribute.value.number = -1;
    } else if (number) {
        attribute.id = what[0] == 'm' ? MW_ATTRIBUTE_SMEM_MODE
                       : what[1] == 'a' ? MW_ATTRIBUTE_CARVE_OUT
                                        : MW_ATTRIBUTE_CLUSTER;
        attribute.value.number = atoi(number + 1);
        attribute.value.sides[1] = attribute.value.sides[2] = 1;
    }
    return attribute;
}

static mw_result extended(void *kernel, uint32_t smem, const char *what) {
    struct mw_attribute attribute = attribute_of(what);
    struct mw_config config = {.grid = {1, 1, 1}, .block = {128, 1, 1}, .smem_bytes = smem, .attributes = &attribute};
    config.attribute_count = strcmp(what, "plain") != 0;
    return launch_ex(&config, kernel, NULL, NULL);
}

static int answered(const char *what, void *kernel, char **word) {
    int answer = -1, block = 0;
    size_t bytes = 0;
    if (strcmp(what, "available") == 0)
        CALL(mw_available, "cuOccupancyAvailableDynamicSMemPerBlock")(&bytes, kernel, atoi(word[1]), 128), answer = (int)bytes;
    else if (strcmp(what, "potential") == 0)
        CALL(mw_potential, "cuOccupancyMaxPotentialBlockSize")(&answer, &block, kernel, NULL, (size_t)atoi(word[1]), 128);
    else if (strcmp(what, "clusters") == 0) {
        struct mw_attribute attribute = attribute_of(word[2]);
        struct mw_config config = {.grid = {8, 1, 1}, .block = {128, 1, 1}, .attributes = &attribute, .attribute_count = 1};
        config.smem_bytes = (uint32_t)atoi(word[1]);
        CALL(mw_clusters, "cuOccupancyMaxActiveClusters")(&answer, kernel, &config);
    } else
        CALL(mw_active, "cuOccupancyMaxActiveBlocksPerMultiprocessor")(&answer, kernel, 128, (size_t)atoi(word[1]));
    return answer;
}

static mw_result set_limit(void *kernel, int bytes) {
    return CALL(mw_function_set, "cuFuncSetAttribute")(kernel, MW_FUNCTION_MAX_DYNAMIC_BYTES, bytes);
}

static void *launcher(void *count) {
    for (long at = 0; at < (long)count; at++)
        if (plain(kernels[at % 2], 1, 64) != MW_SUCCESS)
            exit(98);
    return NULL;
}

static int use_rules(uint32_t set) {
    int (*use)(uint32_t) = (int (*)(uint32_t))dlsym(RTLD_DEFAULT, "makeway_use_rules");
    return use ? use(set) : -2;
}

static long memory_kib(void) {
    struct rusage used;
    return getrusage(RUSAGE_SELF, &used) == 0 ? used.ru_maxrss : -1;
}

static void alternate(int count) {
    long before = 0;
    for (int at = 0; at < count; at++) {
        if (use_rules((uint32_t)at % 2) != 0 || plain(kernels[0], 1, 64) != MW_SUCCESS)
            exit(96);
        if (at == 100)
            before = memory_kib();
    }
    printf("%ld\n", memory_kib() - before);
}

static void run_threads(int threads, long count, char kind) {
    pthread_t ids[64];
    void *module = &ids, *function;
    for (int at = 0; at < threads; at++)
        pthread_create(&ids[at], NULL, launcher, (void *)count);
    for (int at = 0; kind == 't' && at < 401; at++)
        use_rules(at % 2);
    for (int at = 0; kind == 'c' && at < 200; at++) {
        CALL(mw_get_kernel, "cuModuleGetFunction")(&function, module, "passing");
        plain(function, 1, 64);
        CALL(mw_one_handle, "cuModuleUnload")(module);
    }
    for (int at = 0; at < threads; at++)
        pthread_join(ids[at], NULL);
}

static char **step(char **word) {
    const char *what = *word++;
    if (strcmp(what, "via") == 0)
        open_library(*word++);
    else if (strcmp(what, "kernel") == 0)
        CALL(mw_get_kernel, "cuModuleGetFunction")(&kernels[kernel_count++], "module", *word++);
    else if (strcmp(what, "handle") == 0)
        CALL(mw_get_kernel, "cuLibraryGetKernel")(&kernels[kernel_count++], "library", *word++);
    else if (strcmp(what, "launch") == 0)
        printf("%d\n", plain(kernels[atoi(word[0])], 1, (uint32_t)atoi(word[1]))), word += 2;
    else if (strcmp(what, "bad-grid") == 0)
        printf("%d\n", plain(kernels[atoi(word[0])], 0, (uint32_t)atoi(word[1]))), word += 2;
    else if (strcmp(what, "ex") == 0)
        printf("%d\n", extended(kernels[atoi(word[0])], (uint32_t)atoi(word[1]), word[2])), word += 3;
    else if (strcmp(what, "cooperative") == 0)
        printf("%d\n", launch_cooperative(kernels[atoi(word[0])], 1, 1, 1, 128, 1, 1, (uint32_t)atoi(word[1]), NULL, NULL)),
            word += 2;
    else if (strcmp(what, "grid") == 0)
        printf("%d\n", plain(kernels[atoi(word[0])], (uint32_t)atoi(word[2]), (uint32_t)atoi(word[1]))), word += 3;
    else if (strcmp(what, "set") == 0)
        printf("%d\n", CALL(mw_function_set, "cuFuncSetAttribute")(kernels[atoi(word[0])], atoi(word[1]), atoi(word[2]))),
            word += 3;
    else if (strcmp(what, "occupancy") == 0 || strcmp(what, "available") == 0 || strcmp(what, "potential") == 0 ||
             strcmp(what, "clusters") == 0)
        printf("%d\n", answered(what, kernels[atoi(word[0])], word)), word += 2 + (what[0] == 'c');
    else if (strcmp(what, "limit") == 0)
        printf("%d\n", set_limit(kernels[atoi(word[0])], atoi(word[1]))), word += 2;
    else if (strcmp(what, "context") == 0)
        CALL(mw_one_handle, "cuCtxSetCurrent")((void *)(intptr_t)atoi(*word++));
    else if (strcmp(what, "unload") == 0)
        CALL(mw_one_handle, "cuModuleUnload")("module"), kernel_count = 0;
    else if (strcmp(what, "reopen") == 0)
        dlclose(library), kernel_count = 0;
    else if (strcmp(what, "threads") == 0 || strcmp(what, "churn") == 0 || strcmp(what, "turns") == 0)
        run_threads(atoi(word[0]), atol(word[1]), strcmp(what, "threads") == 0 ? 0 : what[0]), word += 2;
    else if (strcmp(what, "rules") == 0)
        printf("%d\n", use_rules((uint32_t)atoi(*word++)));
    else if (strcmp(what, "alternate") == 0)
        alternate(atoi(*word++));
    else if (strcmp(what, "graph") == 0)
        printf("%d\n", CALL(mw_two_handles, "cuGraphLaunch")(NULL, NULL));
    else if (strcmp(what, "crash") == 0)
        fflush(stdout), kill(getpid(), SIGKILL);
    else if (strcmp(what, "fork") == 0) {
        fflush(stdout);
        int status = 0;
        pid_t child = fork();
        if (child > 0)
            waitpid(child, &status, 0);
    } else {
        fprintf(stderr, "unknown step %s\n", what);
        exit(97);
    }
    return word;
}

int main(int count, char **words) {
    (void)count;
    for (char **word = words + 1; *word;)
        word = step(word);
    return 0;
}
