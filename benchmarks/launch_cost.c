/* launch_cost CUBIN KERNEL SMEM THREADS LAUNCHES: nanoseconds of processor time per launch of each thread, one per line.
 * Knows nothing of the shim. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*launch_type)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                           void **);

static launch_type launch;
static void *function, *context;
static int (*set_current)(void *);
static long launches;
static unsigned smem;
static char arguments[256]; /* eight bytes for each parameter the kernel may have */
static pthread_barrier_t together;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); /* other work on the machine does not count */
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: error %d\n", what, result);
        exit(2);
    }
}

static void *run(void *took_ns) {
    void *parameters[32];
    for (int at = 0; at < 32; at++)
        parameters[at] = &arguments[8 * at];
    check(set_current(context), "cuCtxSetCurrent");
    pthread_barrier_wait(&together);
    double start = now_ns();
    for (long left = launches; left--;)
        check(launch(function, 1, 1, 1, 128, 1, 1, smem, NULL, parameters, NULL), "cuLaunchKernel");
    *(double *)took_ns = (now_ns() - start) / (double)launches;
    return NULL;
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found)
        check(1, name);
    return found;
}

int main(int count, char **words) {
    static char image[1 << 20];
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *module;
    FILE *file = count == 6 ? fopen(words[1], "rb") : NULL;
    if (!library || !file || !fread(image, 1, sizeof image, file))
        return 2;
    fclose(file);
    int threads = atoi(words[4]);
    smem = (unsigned)atoi(words[3]);
    launches = atol(words[5]);
    check(((int (*)(unsigned))symbol(library, "cuInit"))(0), "cuInit");
    check(((int (*)(void **, int))symbol(library, "cuDevicePrimaryCtxRetain"))(&context, 0), "context");
    set_current = (int (*)(void *))symbol(library, "cuCtxSetCurrent");
    check(set_current(context), "cuCtxSetCurrent");
    check(((int (*)(void **, const void *))symbol(library, "cuModuleLoadData"))(&module, image), "module");
    check(((int (*)(void **, void *, const char *))symbol(library, "cuModuleGetFunction"))(&function, module, words[2]),
          "function");
    launch = (launch_type)symbol(library, "cuLaunchKernel");
    pthread_t ids[64];
    double took_ns[64];
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int at = 0; at < threads; at++)
        pthread_create(&ids[at], NULL, run, &took_ns[at]);
    for (int at = 0; at < threads; at++) {
        pthread_join(ids[at], NULL);
        printf("%.3f\n", took_ns[at]);
    }
    return 0;
}
