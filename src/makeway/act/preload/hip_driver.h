/* The HIP functions that the shim replaces (up to NODE_DESTROY) or calls. */
#ifndef MAKEWAY_HIP_DRIVER_H
#define MAKEWAY_HIP_DRIVER_H

#include "shim.h"

enum hip_symbol {
    MODULE_LAUNCH,
    EXT_MODULE_LAUNCH,
    HOST_LAUNCH,
    HOST_EXT_LAUNCH,
    HOST_LAUNCH_SPT,
    HCC_LAUNCH,
    EX_LAUNCH,
    HOST_EX_LAUNCH,
    MODULE_COOPERATIVE,
    HOST_COOPERATIVE,
    MODULE_UNLOAD,
    ADDRESS,
    ADD_KERNEL,
    SET_KERNEL,
    SET_EXEC_KERNEL,
    ADD_NODE,
    SET_NODE,
    SET_EXEC_NODE,
    NODE_SET_ATTRIBUTE,
    GRAPH_LAUNCH,
    GRAPH_LAUNCH_SPT,
    GRAPH_DESTROY,
    NODE_DESTROY,
    NODE_GET,
    NODE_GET_ATTRIBUTE,
    NAME,
    HOST_NAME,
    FUNCTION_GET,
    HOST_GET,
    ACTIVE,
    HOST_ACTIVE,
    HIP_SYMBOLS
};

#define REAL(type, symbol) ((type)real_of(&hip, symbol))
#define DIMENSIONS uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz

#define SAYS_COOPERATIVE "a cooperative launch: with a pad its blocks might not all fit at once"

/* The entry of a kernel, decided on first use; NULL: the shim is off or full. `host`: the pointer that the compiler gave the
 * program, not a handle. */
struct kernel *hip_kernel(const void *function, bool host);

/* Whether to launch with `given` bytes; if not, the launch is already counted. */
bool hip_padded(struct kernel *kernel, uint64_t threads, size_t asked, size_t *given);

/* A padded launch was refused and then repeated unchanged: the refusal is ours only if the repeat succeeded. */
mw_result hip_settled(struct kernel *kernel, const char *what, mw_result refusal, mw_result repeat);

mw_result hip_counted(const struct kernel *kernel, size_t asked, size_t given, mw_result result);
void hip_count_cooperative(struct kernel *kernel);

/* --- what programs call: nodes of hand-built graphs (hip_graph.c) ------------------------------ */

EXPORT mw_result hipGraphAddKernelNode(void **node, void *graph, void *const *after, size_t count,
                                       const struct mw_hip_kernel_node *given);
EXPORT mw_result hipGraphKernelNodeSetParams(void *node, const struct mw_hip_kernel_node *given);
EXPORT mw_result hipGraphExecKernelNodeSetParams(void *exec, void *node, const struct mw_hip_kernel_node *given);
EXPORT mw_result hipGraphAddNode(void **node, void *graph, void *const *after, size_t count, struct mw_hip_node *given);
EXPORT mw_result hipGraphNodeSetParams(void *node, struct mw_hip_node *given);
EXPORT mw_result hipGraphExecNodeSetParams(void *exec, void *node, struct mw_hip_node *given);
EXPORT mw_result hipGraphKernelNodeSetAttribute(void *node, uint32_t id, const union mw_attribute_value *value);
EXPORT mw_result hipGraphDestroy(void *graph);
EXPORT mw_result hipGraphDestroyNode(void *node);

#endif
