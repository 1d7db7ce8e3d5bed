/* driver VERSION STEP...: loads NCCL_TUNER_PLUGIN and calls it as NCCL of that tuner interface does.
 *
 * The signatures are written here once more, from NVIDIA/nccl's headers (src/include/plugin/tuner, plugins/tuner/example),
 * so that a mistake in the plugin's own declarations shows. Rules of NCCL kept here (src/enqueue.cc, ncclGetAlgoInfo):
 * channels start at 0, any result but success fails the collective, the cheapest entry that is not negative is taken.
 *
 *   comm RANKS          make a communicator; later calls are its own
 *   use NUMBER          go back to an earlier one
 *   cost ALGO PROTO US  set an entry of the table (-1: unavailable)
 *   call KIND BYTES     prints channels, algorithm and protocol
 *   threads N CALLS BYTES   N threads with a communicator each
 *   churn N CALLS BYTES     N threads that share the current communicator
 *   end, reopen, fork, pause (reads a line), time CALLS BYTES (prints ns per call) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ALGORITHMS = 7, PROTOCOLS = 3, MOST = 64 };
typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

union tuner {
    struct {
        const char *name;
        int (*init)(size_t, size_t, logger, void **);
        int (*info)(void *, int, size_t, int, int, int, int *, int *, int *);
        int (*destroy)(void *);
    } v2;
    struct {
        const char *name;
        int (*init)(size_t, size_t, logger, void **);
        int (*info)(void *, int, size_t, int, float **, int, int, int *);
        int (*destroy)(void *);
    } v3;
    struct {
        const char *name;
        int (*init)(size_t, size_t, logger, void **);
        int (*info)(void *, int, size_t, int, float **, int, int, int, int *);
        int (*destroy)(void *);
    } v4;
    struct {
        const char *name;
        int (*init)(void **, uint64_t, size_t, size_t, logger, void *, void *);
        int (*info)(void *, int, size_t, int, float **, int, int, int, int *);
        int (*finalize)(void *);
        int (*chunk)(void *, int, size_t, int, int, int, size_t *); /* from v6 */
    } v5;
};

static void *library;
static const union tuner *tuner;
static int version, communicators, current;
static void *contexts[MOST];
static float costs[ALGORITHMS][PROTOCOLS];
static double constants[512];
static int domains[3] = {1, 8, 8};

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "driver: %s\n", what);
        exit(3);
    }
}

static void quiet(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

static void load(void) {
    char symbol[64];
    library = dlopen(getenv("NCCL_TUNER_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    require(library != NULL, "the plugin cannot be loaded");
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    tuner = dlsym(library, symbol);
    require(tuner && strcmp(tuner->v2.name, "makeway") == 0, "the plugin has no such symbol");
    if (version >= 6)
        require(tuner->v5.chunk == NULL, "the chunk size should stay NCCL's");
}

static void *communicator(size_t ranks) {
    void *context = NULL;
    double before[512];
    memcpy(before, constants, sizeof before);
    int result = version < 5 ? tuner->v2.init(ranks, 1, quiet, &context)
                             : tuner->v5.init(&context, 42, ranks, 1, quiet, domains, constants);
    require(result == 0 && memcmp(before, constants, sizeof before) == 0, "init failed or changed the constants");
    return context;
}

/* One collective: what NCCL would do after asking. */
static void collective(void *context, int kind, size_t bytes, int *channels, int *algorithm, int *protocol) {
    struct {
        float before[4], cost[ALGORITHMS][PROTOCOLS], after[4];
    } table = {{7, 7, 7, 7}, {{0}}, {9, 9, 9, 9}};
    int forced[2] = {-1, -1}, result;
    memcpy(table.cost, costs, sizeof costs);
    *channels = 0;
    if (version == 2)
        result = tuner->v2.info(context, kind, bytes, 0, 0, 1, &forced[0], &forced[1], channels);
    else if (version == 3)
        result = tuner->v3.info(context, kind, bytes, 1, (float **)table.cost, ALGORITHMS, PROTOCOLS, channels);
    else if (version == 4)
        result = tuner->v4.info(context, kind, bytes, 1, (float **)table.cost, ALGORITHMS, PROTOCOLS, 0, channels);
    else
        result = tuner->v5.info(context, kind, bytes, 1, (float **)table.cost, ALGORITHMS, PROTOCOLS, 0, channels);
    require(result == 0, "the plugin failed a collective");
    require(table.before[3] == 7 && table.after[0] == 9, "the plugin wrote outside the table");
    require((forced[0] < 0) == (forced[1] < 0), "an algorithm without a protocol");
    if (forced[0] >= 0 && table.cost[forced[0]][forced[1]] >= 0)
        table.cost[forced[0]][forced[1]] = 0;
    float least = 1e30f;
    for (int a = 0; a < ALGORITHMS; a++)
        for (int p = 0; p < PROTOCOLS; p++) {
            require(costs[a][p] >= 0 || table.cost[a][p] == costs[a][p], "an unavailable entry was changed");
            if (table.cost[a][p] >= 0 && table.cost[a][p] < least) {
                least = table.cost[a][p];
                *algorithm = a;
                *protocol = p;
            }
        }
}

struct work {
    void *context;
    long calls;
    size_t bytes;
};

static void *repeat(void *argument) {
    struct work *work = argument;
    int channels, algorithm, protocol;
    for (long left = work->calls; left--;)
        collective(work->context, (int)(left % 5), work->bytes, &channels, &algorithm, &protocol);
    return NULL;
}

static void on_threads(int threads, long calls, size_t bytes, int shared) {
    pthread_t ids[MOST];
    struct work work[MOST];
    for (int at = 0; at < threads; at++) {
        work[at] = (struct work){shared ? contexts[current] : communicator(2), calls, bytes};
        pthread_create(&ids[at], NULL, repeat, &work[at]);
    }
    for (int at = 0; at < threads; at++)
        pthread_join(ids[at], NULL);
    for (int at = 0; at < threads && !shared; at++)
        require((version < 5 ? tuner->v2.destroy : tuner->v5.finalize)(work[at].context) == 0, "the end failed");
}

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Only the plugin's own time: the table is as NCCL has it, on the stack. */
static void timed(long calls, size_t bytes) {
    float table[ALGORITHMS][PROTOCOLS];
    memcpy(table, costs, sizeof table);
    int channels = 0;
    double start = now_ns();
    for (long left = calls; left--;)
        if (tuner->v5.info(contexts[current], 4, bytes, 1, (float **)table, ALGORITHMS, PROTOCOLS, 0, &channels))
            exit(3);
    printf("%.2f\n", (now_ns() - start) / (double)calls);
}

int main(int count, char **words) {
    require(count > 1, "which version?");
    version = atoi(words[1]);
    for (int at = 0; at < ALGORITHMS * PROTOCOLS; at++)
        costs[at / PROTOCOLS][at % PROTOCOLS] = -1;
    costs[0][0] = 50, costs[0][2] = 40, costs[1][0] = 60, costs[1][1] = 45, costs[1][2] = 30; /* ring, simple */
    load();
    for (int at = 2; at < count; at++) {
        const char *step = words[at];
#define NEXT (require(at + 1 < count, "a step is short of numbers"), atoll(words[++at]))
        if (strcmp(step, "comm") == 0) {
            current = communicators++;
            contexts[current] = communicator((size_t)NEXT);
        } else if (strcmp(step, "use") == 0) {
            current = (int)NEXT;
        } else if (strcmp(step, "cost") == 0) {
            int algorithm = (int)NEXT, protocol = (int)NEXT;
            costs[algorithm][protocol] = (float)NEXT;
        } else if (strcmp(step, "call") == 0) {
            int kind = (int)NEXT, channels, algorithm = -1, protocol = -1;
            collective(contexts[current], kind, (size_t)NEXT, &channels, &algorithm, &protocol);
            printf("%d %d %d\n", channels, algorithm, protocol);
        } else if (strcmp(step, "threads") == 0 || strcmp(step, "churn") == 0) {
            int threads = (int)NEXT;
            long calls = (long)NEXT;
            on_threads(threads, calls, (size_t)NEXT, step[0] == 'c');
        } else if (strcmp(step, "time") == 0) {
            long calls = (long)NEXT;
            timed(calls, (size_t)NEXT);
        } else if (strcmp(step, "end") == 0) {
            while (communicators) {
                void *context = contexts[--communicators];
                require((version < 5 ? tuner->v2.destroy : tuner->v5.finalize)(context) == 0, "the end failed");
            }
        } else if (strcmp(step, "reopen") == 0) {
            require(dlclose(library) == 0, "the plugin cannot be closed");
            load();
        } else if (strcmp(step, "fork") == 0) {
            fflush(stdout);
            pid_t child = fork();
            int status = 0;
            if (child) {
                waitpid(child, &status, 0);
                require(status == 0, "the child failed");
            }
        } else if (strcmp(step, "pause") == 0) {
            fflush(stdout);
            require(getchar() != EOF, "nobody says go on");
        } else {
            require(0, step);
        }
    }
    return 0;
}
