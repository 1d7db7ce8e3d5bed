/* Kernel nodes that a program adds to a graph by hand, or sets later: padded as launches are.
 *
 * What a node holds is read from the driver, not remembered: a program that reads a padded node and writes the same bytes
 * back (as with nodes of a captured graph) keeps that pad and gets no second one. Nodes are not launches: each call counts
 * once, however often the graph is launched. */
#include "cuda_driver.h"

#include <string.h>

static const char SAYS_NODE[] = "a graph node: its priority is the node's own, for the program to set";

/* --- one change ----------------------------------------------------------------------------------- */

static void *function_of(const struct mw_kernel_node *params) {
    return params->function ? params->function : params->kernel;
}

/* A CUkernel is decided for the current context; a node may be for another. */
static bool for_current_context(const struct mw_kernel_node *params) {
    mw_current current = REAL(mw_current, CURRENT);
    void *context = NULL;
    return params->function || !params->context ||
           (current && current(&context) == MW_SUCCESS && context == params->context);
}

/* What a node holds now; zeros where the driver does not say, or there is no node yet. */
static struct mw_kernel_node held_by(void *node) {
    mw_get_kernel_node get = node ? REAL(mw_get_kernel_node, NODE_GET) : NULL;
    struct mw_kernel_node held = {0};
    if (!get || get(node, &held) != MW_SUCCESS)
        memset(&held, 0, sizeof held);
    return held;
}

static union mw_attribute_value attribute_of(void *node, uint32_t id, bool *known) {
    mw_get_node_attribute get = node ? REAL(mw_get_node_attribute, NODE_GET_ATTRIBUTE) : NULL;
    union mw_attribute_value value = {0};
    *known = get && get(node, id, &value) == MW_SUCCESS;
    return value;
}

static struct wishes wishes_of_node(void *node) {
    struct wishes wishes = {0};
    bool known;
    union mw_attribute_value value = attribute_of(node, MW_ATTRIBUTE_COOPERATIVE, &known);
    wishes.cooperative = known && value.number;
    value = attribute_of(node, MW_ATTRIBUTE_CLUSTER, &known);
    wishes.cluster = known ? value.sides[0] * value.sides[1] * value.sides[2] : 0;
    value = attribute_of(node, MW_ATTRIBUTE_CARVE_OUT, &known);
    wishes.carved = known && value.number != MW_NO_CARVE_OUT;
    value = attribute_of(node, MW_ATTRIBUTE_SMEM_MODE, &known);
    wishes.mode = known ? (uint32_t)value.number : 0;
    return wishes;
}

static struct mw_config config_of(const struct mw_kernel_node *params, struct mw_attribute *cluster, void *node) {
    struct mw_config config = {.smem_bytes = params->smem_bytes};
    bool known;
    memcpy(config.grid, params->grid, sizeof config.grid);
    memcpy(config.block, params->block, sizeof config.block);
    *cluster = (struct mw_attribute){.id = MW_ATTRIBUTE_CLUSTER, .value = attribute_of(node, MW_ATTRIBUTE_CLUSTER, &known)};
    if (known && cluster->value.sides[0]) {
        config.attributes = cluster;
        config.attribute_count = 1;
    }
    return config;
}

/* The kernel whose node gets `given` bytes; NULL: leave the node alone, which is counted. */
static struct kernel *pads(const struct mw_kernel_node *params, void *node, struct wishes wishes, uint32_t *given) {
    void *function = function_of(params);
    struct kernel *kernel = function && for_current_context(params) ? cuda_kernel(function) : NULL;
    switch (kernel ? atomic_load(&kernel->action) : LEAVE) {
    case PAD:
    case FIT: break;
    case RAISE: kernels_skip(kernel, SAID_EX, SAYS_NODE); return NULL;
    case SKIP: receipts_count(kernel->slot, SKIPPED); return NULL; /* the reason is recorded */
    case LEAVE:
        if (kernel)
            receipts_count(kernel->slot, PLAIN);
        return NULL;
    }
    struct mw_kernel_node held = held_by(node);
    if (function_of(&held) == function && held.smem_bytes == params->smem_bytes) {
        receipts_count(kernel->slot, PLAIN); /* no change */
        return NULL;
    }
    struct mw_attribute cluster;
    struct mw_config config = config_of(params, &cluster, node);
    return cuda_pad(kernel, &config, wishes, given) ? kernel : NULL;
}

static void carve(struct kernel *kernel, void *node, struct wishes wishes) {
    mw_set_node_attribute set = REAL(mw_set_node_attribute, NODE_SET_ATTRIBUTE);
    union mw_attribute_value most = {.number = MW_MOST_SHARED};
    mw_result result = MW_SUCCESS;
    if (set && !wishes.carved && atomic_load(&kernel->carves))
        result = set(node, MW_ATTRIBUTE_CARVE_OUT, &most);
    if (refused(result))
        cuda_uncarved(kernel, result, MW_SUCCESS);
}

/* One call; CALL() makes it with the bytes in `changed`. `existing` is the node that it changes, NULL where it makes one,
 * and `made` is then known afterwards. `bare`: no attribute of the node can be set, since it is of an executable graph. */
#define NODE_CALL(params, existing, made, bare)                                             \
    struct wishes wishes = wishes_of_node(existing);                                        \
    uint32_t asked = (params)->smem_bytes, bytes = asked, epoch = atomic_load(&shim_epoch); \
    struct kernel *kernel = pads(params, existing, wishes, &bytes);                         \
    if (!kernel)                                                                            \
        return CALL();                                                                      \
    (params)->smem_bytes = bytes;                                                           \
    mw_result result = CALL();                                                              \
    if (refused(result)) {                                                                  \
        (params)->smem_bytes = asked;                                                       \
        return cuda_settled(kernel, "a padded graph node", epoch, result, CALL());          \
    }                                                                                       \
    if (result != MW_SUCCESS)                                                               \
        return result;                                                                      \
    receipts_padded(kernel->slot, asked, bytes);                                            \
    if (!(bare)) {                                                                          \
        nodes_remember((struct padded_node){made, function_of(params), asked, bytes});      \
        carve(kernel, made, wishes);                                                        \
    }                                                                                       \
    return result

/* --- what programs call --------------------------------------------------------------------------- */

/* Version 1 of the parameters ends before `kernel`: it is read no further. */
static struct mw_kernel_node copied(const void *given, bool first) {
    struct mw_kernel_node copy = {0};
    memcpy(&copy, given, first ? offsetof(struct mw_kernel_node, kernel) : sizeof copy);
    return copy;
}

static mw_result add_kernel(int symbol, void **node, void *graph, void *const *after, size_t count, const void *given) {
    mw_add_kernel_node real = REAL(mw_add_kernel_node, symbol);
    if (!real || !given || !node)
        return real ? real(node, graph, after, count, given) : MW_NOT_FOUND;
    struct mw_kernel_node changed = copied(given, symbol == ADD_KERNEL);
#define CALL() real(node, graph, after, count, &changed)
    NODE_CALL(&changed, NULL, *node, false);
#undef CALL
}

static mw_result set_kernel(int symbol, void *node, const void *given) {
    mw_set_kernel_node real = REAL(mw_set_kernel_node, symbol);
    if (!real || !given || !node)
        return real ? real(node, given) : MW_NOT_FOUND;
    struct mw_kernel_node changed = copied(given, symbol == SET_KERNEL);
#define CALL() real(node, &changed)
    NODE_CALL(&changed, node, node, false);
#undef CALL
}

static mw_result set_exec_kernel(int symbol, void *exec, void *node, const void *given) {
    mw_set_exec_kernel real = REAL(mw_set_exec_kernel, symbol);
    if (!real || !given || !node)
        return real ? real(exec, node, given) : MW_NOT_FOUND;
    struct mw_kernel_node changed = copied(given, symbol == SET_EXEC_KERNEL);
#define CALL() real(exec, node, &changed)
    NODE_CALL(&changed, node, node, true);
#undef CALL
}

mw_result cuGraphAddKernelNode(void **node, void *graph, void *const *after, size_t count, const void *given) {
    return add_kernel(ADD_KERNEL, node, graph, after, count, given);
}

mw_result cuGraphAddKernelNode_v2(void **node, void *graph, void *const *after, size_t count, const void *given) {
    return add_kernel(ADD_KERNEL_V2, node, graph, after, count, given);
}

mw_result cuGraphKernelNodeSetParams(void *node, const void *given) {
    return set_kernel(SET_KERNEL, node, given);
}

mw_result cuGraphKernelNodeSetParams_v2(void *node, const void *given) {
    return set_kernel(SET_KERNEL_V2, node, given);
}

mw_result cuGraphExecKernelNodeSetParams(void *exec, void *node, const void *given) {
    return set_exec_kernel(SET_EXEC_KERNEL, exec, node, given);
}

mw_result cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const void *given) {
    return set_exec_kernel(SET_EXEC_KERNEL_V2, exec, node, given);
}

/* Nodes of any kind: other kinds are passed on as they are, since the driver may write into their parameters. */
static bool plain_node(const struct mw_node *given) {
    return !given || given->type != MW_NODE_KERNEL;
}

mw_result cuGraphAddNode(void **node, void *graph, void *const *after, size_t count, struct mw_node *given) {
    mw_add_node real = REAL(mw_add_node, ADD_NODE);
    if (!real || !node || plain_node(given))
        return real ? real(node, graph, after, count, given) : MW_NOT_FOUND;
    struct mw_node changed = *given;
#define CALL() real(node, graph, after, count, &changed)
    NODE_CALL(&changed.kernel, NULL, *node, false);
#undef CALL
}

static mw_result add_node(int symbol, void **node, void *graph, void *const *after, const void *edges, size_t count,
                          struct mw_node *given) {
    mw_add_node_v2 real = REAL(mw_add_node_v2, symbol);
    if (!real || !node || plain_node(given))
        return real ? real(node, graph, after, edges, count, given) : MW_NOT_FOUND;
    struct mw_node changed = *given;
#define CALL() real(node, graph, after, edges, count, &changed)
    NODE_CALL(&changed.kernel, NULL, *node, false);
#undef CALL
}

mw_result cuGraphAddNode_v2(void **node, void *graph, void *const *after, const void *edges, size_t count,
                            struct mw_node *given) {
    return add_node(ADD_NODE_V2, node, graph, after, edges, count, given);
}

mw_result cuGraphAddNode_v3(void **node, void *graph, void *const *after, const void *edges, size_t count,
                            struct mw_node *given) {
    return add_node(ADD_NODE_V3, node, graph, after, edges, count, given);
}

static mw_result set_node(int symbol, void *node, struct mw_node *given) {
    mw_set_node real = REAL(mw_set_node, symbol);
    if (!real || !node || plain_node(given))
        return real ? real(node, given) : MW_NOT_FOUND;
    struct mw_node changed = *given;
#define CALL() real(node, &changed)
    NODE_CALL(&changed.kernel, node, node, false);
#undef CALL
}

mw_result cuGraphNodeSetParams(void *node, struct mw_node *given) {
    return set_node(SET_NODE, node, given);
}

mw_result cuGraphNodeSetParams_v2(void *node, struct mw_node *given) {
    return set_node(SET_NODE_V2, node, given);
}

mw_result cuGraphExecNodeSetParams(void *exec, void *node, struct mw_node *given) {
    mw_set_exec_node real = REAL(mw_set_exec_node, SET_EXEC_NODE);
    if (!real || !node || plain_node(given))
        return real ? real(exec, node, given) : MW_NOT_FOUND;
    struct mw_node changed = *given;
#define CALL() real(exec, node, &changed)
    NODE_CALL(&changed.kernel, node, node, true);
#undef CALL
}

/* --- attributes that a pad must not stand in the way of ------------------------------------------- */

/* Gives a node back what the program asked for, if it still has what we gave it. */
static void take_pad_off(void *node, struct padded_node padded) {
    mw_set_kernel_node set = REAL(mw_set_kernel_node, SET_KERNEL_V2);
    struct mw_kernel_node held = held_by(node);
    if (!set || function_of(&held) != padded.function || held.smem_bytes != padded.given)
        return;
    held.smem_bytes = padded.asked;
    set(node, &held);
}

/* Whether the pad may stay with a cluster of so many blocks. */
static bool stays(void *node, struct padded_node padded, const struct mw_attribute *cluster) {
    struct kernel *kernel = cuda_kernel(padded.function);
    struct mw_kernel_node held = held_by(node);
    struct mw_attribute attribute = *cluster;
    struct mw_config config = {.smem_bytes = padded.asked, .attributes = &attribute, .attribute_count = 1};
    uint32_t given;
    memcpy(config.grid, held.grid, sizeof config.grid);
    memcpy(config.block, held.block, sizeof config.block);
    return kernel && cuda_pad(kernel, &config, wishes_of(&config), &given);
}

mw_result cuGraphKernelNodeSetAttribute(void *node, uint32_t id, const union mw_attribute_value *value) {
    mw_set_node_attribute real = REAL(mw_set_node_attribute, NODE_SET_ATTRIBUTE);
    if (!real)
        return MW_NOT_FOUND;
    bool together = id == MW_ATTRIBUTE_COOPERATIVE || id == MW_ATTRIBUTE_CLUSTER;
    struct padded_node padded = value && node && together ? nodes_find(node) : (struct padded_node){0};
    if (padded.node) {
        struct mw_attribute attribute = {.id = id, .value = *value};
        if (!stays(node, padded, &attribute))
            take_pad_off(node, padded);
    }
    mw_result result = real(node, id, value);
    if (padded.node && refused(result)) {
        take_pad_off(node, padded);
        result = real(node, id, value);
    }
    return result;
}

/* Its kernels are not launches of ours: they keep what their nodes were made with, under whichever rule set. */
static mw_result launch_graph(int symbol, void *executable, void *stream) {
    mw_two_handles real = REAL(mw_two_handles, symbol);
    if (shim_on())
        receipts_graph_launched();
    return real ? real(executable, stream) : MW_NOT_FOUND;
}

mw_result cuGraphLaunch(void *executable, void *stream) {
    return launch_graph(GRAPH_LAUNCH, executable, stream);
}

mw_result cuGraphLaunch_ptsz(void *executable, void *stream) {
    return launch_graph(GRAPH_LAUNCH_PTSZ, executable, stream);
}

mw_result cuGraphDestroy(void *graph) {
    mw_one_handle real = REAL(mw_one_handle, GRAPH_DESTROY);
    nodes_forget();
    return real ? real(graph) : MW_NOT_FOUND;
}

mw_result cuGraphDestroyNode(void *node) {
    mw_one_handle real = REAL(mw_one_handle, NODE_DESTROY);
    nodes_forget();
    return real ? real(node) : MW_NOT_FOUND;
}
