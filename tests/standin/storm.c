// Launches from many threads: storm CUBIN KERNEL THREADS LAUNCHES. Prints how many went through and what one cost.
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BLOCK_THREADS 128

static CUfunction function;
static CUcontext context;
static long launches;
static atomic_long done;
static pthread_barrier_t start;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s gave %d\n", what, result);
        exit(9);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *storm(void *unused)
{
    CUstream stream;
    CUdeviceptr memory = 0;
    int count = 0;
    void *parameters[] = {&memory, &memory, &count, &memory, &memory};
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    pthread_barrier_wait(&start);
    for (long i = 0; i < launches; i++)
        if (cuLaunchKernel(function, 8, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters, NULL) == CUDA_SUCCESS)
            count++;
    atomic_fetch_add(&done, count);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    CUmodule module;
    int count = atoi(argv[3]);
    launches = atol(argv[4]);
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuModuleLoad(&module, argv[1]), "cuModuleLoad");
    must(cuModuleGetFunction(&function, module, argv[2]), "cuModuleGetFunction");
    pthread_barrier_init(&start, NULL, (unsigned)count + 1);
    pthread_t threads[count];
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, storm, NULL);
    pthread_barrier_wait(&start);
    double began = seconds();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    double took = seconds() - began;
    printf("{\"launches\": %ld, \"seconds\": %.6f, \"ns_per_launch\": %.2f}\n", atomic_load(&done), took,
           took * 1e9 / (double)atomic_load(&done));
    return 0;
}
