/* Kernel nodes that a HIP program adds to a graph by hand, or sets later; the rules are those of graph.c.
 *
 * A node may name its kernel by the host's pointer or by a handle: HIP tries the former first (ROCm/clr,
 * hipamd/src/hip_graph_internal.hpp, GraphKernelNode::getFunc). */
#include "hip_driver.h"

static struct mw_hip_kernel_node held_by(void *node) {
    mw_hip_get_kernel_node get = node ? REAL(mw_hip_get_kernel_node, NODE_GET) : NULL;
    struct mw_hip_kernel_node held = {0};
    return get && get(node, &held) == MW_SUCCESS ? held : (struct mw_hip_kernel_node){0};
}

static bool is_cooperative(void *node) {
    mw_get_node_attribute get = node ? REAL(mw_get_node_attribute, NODE_GET_ATTRIBUTE) : NULL;
    union mw_attribute_value value = {0};
    return get && get(node, MW_ATTRIBUTE_COOPERATIVE, &value) == MW_SUCCESS && value.number;
}

static struct kernel *kernel_of(const void *function) {
    mw_hip_host_name name = REAL(mw_hip_host_name, HOST_NAME);
    return function ? hip_kernel(function, name && name(function, NULL)) : NULL;
}

/* The kernel whose node gets `given` bytes; NULL: leave the node alone, which is counted. */
static struct kernel *pads(const struct mw_hip_kernel_node *params, void *node, size_t *given) {
    struct kernel *kernel = kernel_of(params->function);
    struct mw_hip_kernel_node held = held_by(node);
    if (kernel && is_cooperative(node)) {
        hip_count_cooperative(kernel);
        return NULL;
    }
    if (kernel && held.function == params->function && held.smem_bytes == params->smem_bytes) {
        receipts_count(kernel->slot, PLAIN); /* no change */
        return NULL;
    }
    uint64_t threads = (uint64_t)params->block.x * params->block.y * params->block.z;
    return hip_padded(kernel, threads, params->smem_bytes, given) ? kernel : NULL;
}

/* One call; CALL() makes it with the bytes in `changed`. `existing` is the node that it changes, NULL where it makes one,
 * and `made` is then known afterwards. `executable`: the node of the graph itself stays as it is. */
#define NODE_CALL(params, existing, made, executable)                                       \
    size_t bytes;                                                                           \
    uint32_t asked = (params)->smem_bytes;                                                  \
    struct kernel *kernel = pads(params, existing, &bytes);                                 \
    if (!kernel)                                                                            \
        return CALL();                                                                      \
    (params)->smem_bytes = (uint32_t)bytes;                                                 \
    mw_result result = CALL();                                                              \
    if (refused(result)) {                                                                  \
        (params)->smem_bytes = asked;                                                       \
        return hip_settled(kernel, "a padded graph node", result, CALL());                  \
    }                                                                                       \
    if (result == MW_SUCCESS && !(executable))                                              \
        nodes_remember((struct padded_node){made, (params)->function, asked, (uint32_t)bytes}); \
    return result == MW_SUCCESS ? hip_counted(kernel, asked, bytes, result) : result

mw_result hipGraphAddKernelNode(void **node, void *graph, void *const *after, size_t count,
                                const struct mw_hip_kernel_node *given) {
    mw_add_kernel_node real = REAL(mw_add_kernel_node, ADD_KERNEL);
    if (!real || !given || !node)
        return real ? real(node, graph, after, count, given) : MW_NOT_FOUND;
    struct mw_hip_kernel_node changed = *given;
#define CALL() real(node, graph, after, count, &changed)
    NODE_CALL(&changed, NULL, *node, false);
#undef CALL
}

mw_result hipGraphKernelNodeSetParams(void *node, const struct mw_hip_kernel_node *given) {
    mw_set_kernel_node real = REAL(mw_set_kernel_node, SET_KERNEL);
    if (!real || !given || !node)
        return real ? real(node, given) : MW_NOT_FOUND;
    struct mw_hip_kernel_node changed = *given;
#define CALL() real(node, &changed)
    NODE_CALL(&changed, node, node, false);
#undef CALL
}

mw_result hipGraphExecKernelNodeSetParams(void *exec, void *node, const struct mw_hip_kernel_node *given) {
    mw_set_exec_kernel real = REAL(mw_set_exec_kernel, SET_EXEC_KERNEL);
    if (!real || !given || !node)
        return real ? real(exec, node, given) : MW_NOT_FOUND;
    struct mw_hip_kernel_node changed = *given;
#define CALL() real(exec, node, &changed)
    NODE_CALL(&changed, node, node, true);
#undef CALL
}

static bool plain_node(const struct mw_hip_node *given) {
    return !given || given->type != MW_NODE_KERNEL;
}

mw_result hipGraphAddNode(void **node, void *graph, void *const *after, size_t count, struct mw_hip_node *given) {
    mw_hip_add_node real = REAL(mw_hip_add_node, ADD_NODE);
    if (!real || !node || plain_node(given))
        return real ? real(node, graph, after, count, given) : MW_NOT_FOUND;
    struct mw_hip_node changed = *given;
#define CALL() real(node, graph, after, count, &changed)
    NODE_CALL(&changed.kernel, NULL, *node, false);
#undef CALL
}

mw_result hipGraphNodeSetParams(void *node, struct mw_hip_node *given) {
    mw_hip_set_node real = REAL(mw_hip_set_node, SET_NODE);
    if (!real || !node || plain_node(given))
        return real ? real(node, given) : MW_NOT_FOUND;
    struct mw_hip_node changed = *given;
#define CALL() real(node, &changed)
    NODE_CALL(&changed.kernel, node, node, false);
#undef CALL
}

mw_result hipGraphExecNodeSetParams(void *exec, void *node, struct mw_hip_node *given) {
    mw_hip_set_exec_node real = REAL(mw_hip_set_exec_node, SET_EXEC_NODE);
    if (!real || !node || plain_node(given))
        return real ? real(exec, node, given) : MW_NOT_FOUND;
    struct mw_hip_node changed = *given;
#define CALL() real(exec, node, &changed)
    NODE_CALL(&changed.kernel, node, node, true);
#undef CALL
}

/* A node that becomes cooperative gets back what the program asked for, if it still has what we gave it. */
mw_result hipGraphKernelNodeSetAttribute(void *node, uint32_t id, const union mw_attribute_value *value) {
    mw_set_node_attribute real = REAL(mw_set_node_attribute, NODE_SET_ATTRIBUTE);
    mw_set_kernel_node set = REAL(mw_set_kernel_node, SET_KERNEL);
    if (!real)
        return MW_NOT_FOUND;
    if (set && node && value && id == MW_ATTRIBUTE_COOPERATIVE && value->number) {
        struct padded_node padded = nodes_find(node);
        struct mw_hip_kernel_node held = held_by(node);
        if (padded.node && held.function == padded.function && held.smem_bytes == padded.given) {
            held.smem_bytes = padded.asked;
            hip_count_cooperative(kernel_of(held.function));
            set(node, &held);
        }
    }
    return real(node, id, value);
}

mw_result hipGraphDestroy(void *graph) {
    mw_one_handle real = REAL(mw_one_handle, GRAPH_DESTROY);
    nodes_forget();
    return real ? real(graph) : MW_NOT_FOUND;
}

mw_result hipGraphDestroyNode(void *node) {
    mw_one_handle real = REAL(mw_one_handle, NODE_DESTROY);
    nodes_forget();
    return real ? real(node) : MW_NOT_FOUND;
}
