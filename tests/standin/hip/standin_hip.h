// The inside of the stand-in libamdhip64.
// Checks and error codes of launches follow ROCm's clr, hipamd/src/hip_module.cpp.
#ifndef STANDIN_HIP_H
#define STANDIN_HIP_H

#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>

#include "recorder.h"

enum tag { TAG_MODULE = 0x6d778001, TAG_FUNCTION, TAG_STREAM, TAG_EVENT, TAG_GRAPH, TAG_NODE, TAG_EXEC };

struct parameter { unsigned offset, size; };

struct code {  // what a code object's metadata says of one kernel
    char *name;
    int registers, scalar_registers, static_bytes, private_bytes, max_threads;
    unsigned argument_bytes, parameter_count;
    struct parameter *parameters;  // the program's own; hidden ones are the runtime's
};

struct image {
    size_t count, room;
    struct code *codes;
};

struct function {
    struct object object;
    const struct code *code;
    atomic_int max_dynamic_bytes;  // asked for by hipFuncSetAttribute; LDS needs no opt-in
};

struct module {
    struct object object;
    struct image image;
    struct function **functions;
};

struct stream {
    struct object object;
    unsigned id, flags;
    int priority;
};

struct launch {
    const char *call;
    const struct function *function;
    unsigned grid[3], block[3];
    size_t smem_bytes;
    void **parameters, **extra;
    bool cooperative;
    bool node;  // of a graph
};

hipError_t hip_result(hipError_t result);  // remembers an error for hipGetLastError
bool hip_ready(void);
const char *hip_arch(void);
uint64_t hip_max_threads(void);  // of a block
size_t hip_smem_block_bytes(void);
hipError_t hsaco_read(struct image *image, const void *data, size_t size);
hipError_t image_read(struct image *image, const void *data);
hipError_t module_load(struct module **out, const void *data);
struct function *module_find(const struct module *module, const char *name);
struct function *registered_function(const void *host);  // null: not registered
int occupancy_blocks(const struct function *function, int threads, size_t smem_bytes);
hipError_t launch_check(const struct launch *launch);
void launch_record(const struct launch *launch, const struct stream *stream, hipError_t result, bool refused);
hipError_t stream_of(hipStream_t handle, const struct stream **out);

#endif
