// The inside of the stand-in libcuda.
// Every exported function is declared by NVIDIA's cuda.h, so a wrong signature does not compile.
#ifndef STANDIN_H
#define STANDIN_H

#define __CUDA_API_VERSION_INTERNAL  // declares every version of every function under its own name
#include <cuda.h>

#include "recorder.h"

enum tag {
    TAG_CONTEXT = 0x6d770001, TAG_MODULE, TAG_FUNCTION, TAG_LIBRARY, TAG_KERNEL, TAG_STREAM, TAG_EVENT,
    TAG_POOL, TAG_GRAPH, TAG_NODE, TAG_EXEC, TAG_CAPTURE, TAG_USER_OBJECT,
};

// --- the device -----------------------------------------------------------------------------------

struct device {
    char name[128];
    int count, driver_version, major, minor, sms;
    int warp_threads, max_threads_per_block, max_threads, max_blocks, registers, max_registers_per_thread;
    int register_unit, partitions;
    int smem_bytes, smem_block_bytes, smem_default_block_bytes, smem_reserved_bytes;
    int max_cluster;
    int least_priority, greatest_priority;
    size_t memory_bytes;
};

const struct device *standin_device(void);
bool standin_ready(void);
int standin_driver_version(void);

// --- contexts -------------------------------------------------------------------------------------

struct context {
    struct object object;
    CUdevice device;
    unsigned flags;
    int retained;  // primary contexts only
    bool primary;
    atomic_size_t memory_used;
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache;
    unsigned long long id;
    struct stream *legacy;  // the default stream
};

struct context *standin_current(void);
struct context *standin_primary(CUdevice device);
CUresult standin_no_context(void);
#define NEED_READY() do { if (!standin_ready()) return CUDA_ERROR_NOT_INITIALIZED; } while (0)
#define NEED_CONTEXT(name) \
    struct context *name = standin_current(); \
    do { if (!name) return standin_no_context(); } while (0)

// --- code -----------------------------------------------------------------------------------------

struct parameter { unsigned offset, size; };

struct code {  // what a cubin says of one kernel
    char *name;
    int registers, static_bytes, local_bytes, const_bytes, barriers, arch;
    unsigned max_threads[3], required[3], cluster[3];  // 0: not given
    unsigned parameter_bytes, parameter_count;
    struct parameter *parameters;
};

struct image {
    int arch;
    size_t count;
    struct code *codes;
};

void *file_content(const char *path);  // to be freed; null when it cannot be read
CUresult image_read(struct image *image, const void *data);  // a cubin, or a fatbin's best cubin
CUresult cubin_read(struct image *image, const unsigned char *data, size_t size);
CUresult fatbin_read(struct image *image, const void *data);
bool image_runs_here(int arch);

struct function {
    struct object object;
    const struct code *code;
    struct context *context;
    struct module *module;
    struct kernel *kernel;  // null for a function of a plain module
    int bound_threads, register_threads;  // most threads of a block: by launch bound and device, by registers
    atomic_int max_dynamic_bytes, carveout, non_portable_cluster, cluster[3], must_set_cluster, scheduling, cache;
    atomic_int smem_mode;
};

struct module {
    struct object object;
    struct context *context;
    struct image image;
    struct function **functions;
    struct library *library;
};

struct kernel {
    struct object object;
    struct library *library;
    size_t index;
    _Atomic(struct function *) last;  // the function that was asked for last: spares launches the lock
};

struct library {
    struct object object;
    struct image image;
    struct kernel **kernels;
    struct module **modules;  // one per context that asked
    size_t module_count, module_room;
};

CUresult module_make(struct module **out, struct context *context, const struct image *image);
CUresult kernel_function(struct kernel *kernel, struct context *context, struct function **out);
// Launches take a CUkernel cast to CUfunction too; it then means that kernel in the current context.
CUresult function_of(CUfunction handle, struct function **out);
CUresult function_get(const struct function *function, CUfunction_attribute attribute, int *value);
CUresult function_set(struct function *function, CUfunction_attribute attribute, int value);
int occupancy_blocks(const struct function *function, int threads, size_t smem_bytes);

struct block_needs {
    int warps, registers_per_warp;
    size_t smem_bytes, carve_out_bytes;  // of a block; of an SM that the kernel has for itself
};

struct block_needs occupancy_needs(const struct function *function, int threads, size_t smem_bytes, int carve_out);
// The most dynamic shared memory of a launch; with a mode (of the launch, or of the function) its limit does not count:
// cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
int function_most_bytes(const struct function *function, int launch_mode);

// --- streams and events ---------------------------------------------------------------------------

struct capture;
struct node;
struct user_object;

struct nodes {
    struct node **at;
    size_t count, room;
};

struct stream {
    struct object object;
    struct context *context;
    unsigned flags;
    int priority;
    unsigned id;  // 0 is the legacy default stream
    _Atomic(struct capture *) capture;
    struct nodes tips;  // what the next captured node waits for
};

struct event {
    struct object object;
    struct context *context;
    unsigned flags;
    _Atomic(uint64_t) recorded_ns;  // 0: never
    struct capture *capture;
    struct nodes tips;
};

struct stream *stream_new(struct context *context, unsigned flags, int priority);
// The stream behind a handle; the two default streams belong to the current context.
CUresult stream_of(CUstream handle, bool per_thread, struct stream **out);

// --- launches -------------------------------------------------------------------------------------

struct attribute_set {
    uint64_t given;  // bit per CUlaunchAttributeID
    CUlaunchAttributeValue values[CU_LAUNCH_ATTRIBUTE_MAX];
};

struct launch {
    const char *call;
    struct function *function;
    bool by_kernel;  // the program passed a CUkernel
    unsigned grid[3], block[3], smem_bytes;
    void **parameters, **extra;
    const struct attribute_set *attributes;  // null: none
};

// Kernels that stay for a while (resident.c); without MAKEWAY_STANDIN_RUN both do nothing.
void resident_launch(const struct launch *launch, unsigned stream, int priority, bool cooperative, int carve_out);
CUresult resident_synchronize(void);

CUresult launch_check(const struct launch *launch);
void launch_record(const struct launch *launch, const struct stream *stream, const char *via, CUresult result,
                   bool refused);
CUresult launch_parameters(const struct code *code, void **parameters, void **extra, unsigned char *out);
CUresult attributes_read(struct attribute_set *set, const CUlaunchAttribute *list, unsigned count);
void attributes_add(struct attribute_set *set, CUlaunchAttributeID id, const CUlaunchAttributeValue *value);
void attributes_text(struct text *text, const struct attribute_set *set);

bool memory_holds(CUdeviceptr at, size_t size);  // all of it inside one allocation of this library

// --- graphs ---------------------------------------------------------------------------------------

struct kernel_node {
    struct function *function;
    bool by_kernel;  // the program named a CUkernel, and gets one back
    unsigned grid[3], block[3], smem_bytes;
    unsigned char *bytes;  // the arguments, laid out as the kernel wants them
    void **parameters;     // pointers into bytes
    struct attribute_set attributes;
};

struct node {
    struct object object;
    struct graph *graph;
    size_t index;         // in graph->nodes; a clone has the same one
    struct node *origin;  // the node this was cloned from
    CUgraphNodeType type;
    struct nodes before;  // what it waits for
    bool disabled;
    unsigned mark;
    struct kernel_node kernel;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS set;
    CUDA_HOST_NODE_PARAMS host;
    CUevent event;
    struct graph *child;
};

struct kept { struct user_object *object; unsigned count; };

struct graph {
    struct object object;
    struct kept *kept;
    size_t kept_count, kept_room;
    struct nodes nodes;
    struct graph *origin;
    unsigned id;
    unsigned mark;
};

struct exec {
    struct object object;
    struct context *context;
    struct graph *graph;
    unsigned long long flags;
};

struct capture {
    struct object object;
    struct graph *graph;
    struct stream *origin;
    CUstreamCaptureMode mode;
    pthread_t thread;
    atomic_int broken;
    unsigned long long id;
    struct stream **streams;
    size_t stream_count, stream_room;
};

struct graph *graph_new(void);
struct graph *graph_clone(const struct graph *graph);
struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct nodes *before);
void graph_keep_same(struct graph *graph, const struct graph *other);
void graph_let_go(struct graph *graph);
void nodes_add(struct nodes *nodes, struct node *node);
void nodes_copy(struct nodes *to, const struct nodes *from);
bool graph_order(struct graph *graph, struct nodes *out);  // before what waits for it; false: there is a cycle
CUresult kernel_node_fill(struct kernel_node *node, const struct launch *launch);
CUresult kernel_node_read(struct launch *launch, const CUDA_KERNEL_NODE_PARAMS_v2 *given, const char *call);
void kernel_node_copy(struct kernel_node *to, const struct kernel_node *from);
struct launch kernel_node_launch(const struct kernel_node *node, const char *call);
CUresult node_set(struct node *node, const CUgraphNodeParams *given, const char *call);
CUresult memory_copy(const CUDA_MEMCPY3D *copy);
CUresult memory_set(const CUDA_MEMSET_NODE_PARAMS *set);

extern pthread_mutex_t standin_lock;  // guards contexts, libraries and pools
extern pthread_mutex_t graph_lock;    // guards graphs and captures; taken first where both are

extern atomic_int standin_captures;  // how many captures are under way
CUresult capture_touch(struct stream *stream);  // an operation that a capture forbids
CUresult capture_implicit(const struct stream *stream);  // work for the legacy stream while another captures
CUresult capture_kernel(struct stream *stream, const struct launch *launch);
CUresult capture_copy(struct stream *stream, const CUDA_MEMCPY3D *copy);
CUresult capture_set(struct stream *stream, const CUDA_MEMSET_NODE_PARAMS *set);
CUresult capture_host(struct stream *stream, CUhostFn function, void *data);
CUresult capture_graph(struct stream *stream, struct graph *graph);

#endif
