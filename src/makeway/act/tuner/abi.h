/* The tuner interface of NCCL and RCCL, versions 2 to 7, in our own words.
 *
 * Read from NVIDIA/nccl: src/include/plugin/tuner/tuner_v2.h to v4.h, plugins/tuner/example/nccl/tuner.h (v5 to v7); and
 * ROCm/rccl: src/include/plugin/nccl_tuner.h (v2 to v5; its constants of v5 are longer, and we never touch them). */
#ifndef MAKEWAY_TUNER_ABI_H
#define MAKEWAY_TUNER_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { MW_SUCCESS = 0 }; /* the only result we return: NCCL's enqueue makes any other an error of the collective */
enum { MW_KINDS = 5 };   /* broadcast, reduce, all-gather, reduce-scatter, all-reduce; point to point never asks */
enum { MW_ALGORITHMS = 7, MW_PROTOCOLS = 3, MW_SIMPLE = 2 }; /* tree, ring ... PAT; LL, LL128, simple */

typedef int mw_result;
typedef void (*mw_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef mw_result (*mw_init)(size_t ranks, size_t nodes, mw_logger log, void **context);
typedef mw_result (*mw_end)(void *context);
/* The table is declared as float ** and is a float[algorithms][protocols]. */
typedef mw_result (*mw_info)(void *context, int kind, size_t bytes, int operations, float **table, int algorithms,
                             int protocols, int registered, int *channels);

struct mw_tuner_v2 {
    const char *name;
    mw_init init;
    mw_result (*info)(void *context, int kind, size_t bytes, int collnet, int nvls, int operations, int *algorithm,
                      int *protocol, int *channels);
    mw_end end;
};

struct mw_tuner_v3 {
    const char *name;
    mw_init init;
    mw_result (*info)(void *context, int kind, size_t bytes, int operations, float **table, int algorithms,
                      int protocols, int *channels);
    mw_end end;
};

struct mw_tuner_v4 {
    const char *name;
    mw_init init;
    mw_info info;
    mw_end end;
};

struct mw_tuner_v5 {
    const char *name;
    mw_result (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, mw_logger log, void *domains,
                      void *constants);
    mw_info info;
    mw_end end;
};

struct mw_tuner_v6 { /* and v7, whose constants are longer */
    struct mw_tuner_v5 v5;
    mw_result (*chunk)(void *context, int kind, size_t bytes, int algorithm, int protocol, int channels,
                       size_t *chunk_bytes); /* NULL: NCCL's own */
};

#endif
