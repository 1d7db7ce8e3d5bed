// Executable graphs: a checked copy of a graph, launched node by node in an order that respects its edges.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

static CUresult check_nodes(struct graph *graph, struct node **wrong)
{
    for (size_t i = 0; i < graph->nodes.count; i++) {
        struct node *node = graph->nodes.at[i];
        if (!atomic_load(&node->object.alive))
            continue;
        CUresult result = CUDA_SUCCESS;
        *wrong = node;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            result = check_nodes(node->child, wrong);
        else if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
            struct launch launch = kernel_node_launch(&node->kernel, "cuGraphInstantiate");
            result = launch_check(&launch);
        }
        if (result != CUDA_SUCCESS)
            return result;
    }
    *wrong = NULL;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags, struct node **wrong)
{
    NEED_CONTEXT(context);
    struct graph *graph = (struct graph *)handle;
    *wrong = NULL;
    if (!out || !standin_is(graph, TAG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&graph_lock);
    struct nodes order = {0};
    CUresult result = graph_order(graph, &order) ? check_nodes(graph, wrong) : CUDA_ERROR_INVALID_VALUE;
    free(order.at);
    if (result == CUDA_SUCCESS) {
        struct exec *exec = standin_new(sizeof *exec, TAG_EXEC);
        exec->context = context;
        exec->graph = graph_clone(graph);
        exec->flags = flags;
        *out = (CUgraphExec)exec;
    }
    pthread_mutex_unlock(&graph_lock);
    standin_record("{\"instantiate\": {\"nodes\": %zu, \"error\": %d}}", graph->nodes.count, result);
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    struct node *wrong;
    return instantiate(out, graph, flags, &wrong);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    struct node *wrong;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(out, graph, params->flags, &wrong);
    params->hErrNode_out = (CUgraphNode)wrong;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return cuGraphInstantiateWithParams(out, graph, params);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
    struct node *wrong;
    CUresult result = instantiate(out, graph, 0, &wrong);
    if (node)
        *node = (CUgraphNode)wrong;
    if (log && size)
        *log = 0;
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    NEED_READY();
    if (!standin_is(exec, TAG_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    standin_end(exec);
    graph_let_go(((struct exec *)exec)->graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    NEED_READY();
    if (!standin_is(exec, TAG_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ((struct exec *)exec)->flags;
    return CUDA_SUCCESS;
}

// --- launching ------------------------------------------------------------------------------------

static CUresult run_graph(struct graph *graph, const struct stream *stream);

static CUresult run_node(struct node *node, const struct stream *stream)
{
    if (node->disabled)
        return CUDA_SUCCESS;
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        struct launch launch = kernel_node_launch(&node->kernel, "cuGraphLaunch");
        // Inside a graph the node's own priority counts, not that of the stream.
        struct stream plain = {.id = stream->id, .context = stream->context};
        CUresult result = launch_check(&launch);
        bool refused = result == CUDA_SUCCESS && standin_refuses_launch(launch.smem_bytes);
        if (refused)
            result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        launch_record(&launch, &plain, "graph", result, refused);
        return result;
    }
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: return memory_copy(&node->copy);
    case CU_GRAPH_NODE_TYPE_MEMSET: return memory_set(&node->set);
    case CU_GRAPH_NODE_TYPE_HOST: node->host.fn(node->host.userData); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: return run_graph(node->child, stream);
    default: return CUDA_SUCCESS;
    }
}

static CUresult run_graph(struct graph *graph, const struct stream *stream)
{
    struct nodes order = {0};
    CUresult result = graph_order(graph, &order) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < order.count && result == CUDA_SUCCESS; i++)
        result = run_node(order.at[i], stream);
    free(order.at);
    return result;
}

static CUresult launch(CUgraphExec handle, CUstream where, bool per_thread)
{
    NEED_READY();
    struct exec *exec = (struct exec *)handle;
    struct stream *stream;
    if (!standin_is(exec, TAG_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (atomic_load(&stream->capture))
        return capture_graph(stream, exec->graph);
    if ((result = capture_implicit(stream)) != CUDA_SUCCESS)
        return result;
    standin_record("{\"graph_launch\": {\"nodes\": %zu, \"stream\": %u}}", exec->graph->nodes.count, stream->id);
    pthread_mutex_lock(&graph_lock);
    result = run_graph(exec->graph, stream);
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, true);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    return standin_is(exec, TAG_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return cuGraphUpload(exec, stream);
}

// --- changing one that exists ---------------------------------------------------------------------

static struct graph *copy_of(struct graph *inside, const struct graph *wanted)
{
    if (inside->origin == wanted)
        return inside;
    for (size_t i = 0; i < inside->nodes.count; i++) {
        struct graph *child = inside->nodes.at[i]->child;
        struct graph *found = child ? copy_of(child, wanted) : NULL;
        if (found)
            return found;
    }
    return NULL;
}

// The node of the executable graph that stands for a node of the graph it was made from.
static struct node *counterpart(CUgraphExec exec, CUgraphNode handle)
{
    const struct node *node = (const struct node *)handle;
    if (!standin_is(exec, TAG_EXEC) || !standin_is(node, TAG_NODE))
        return NULL;
    struct graph *graph = copy_of(((struct exec *)exec)->graph, node->graph);
    return graph && node->index < graph->nodes.count ? graph->nodes.at[node->index] : NULL;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode handle, CUgraphNodeParams *given)
{
    NEED_READY();
    pthread_mutex_lock(&graph_lock);
    struct node *node = counterpart(exec, handle);
    struct launch launch;
    CUresult result = node && given ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && node->type == CU_GRAPH_NODE_TYPE_KERNEL && given->type == node->type) {
        CUDA_KERNEL_NODE_PARAMS_v2 kernel;
        memcpy(&kernel, &given->kernel, sizeof kernel);
        result = kernel_node_read(&launch, &kernel, "cuGraphExecKernelNodeSetParams");
        if (result == CUDA_SUCCESS && launch.function->context != node->kernel.function->context)
            result = CUDA_ERROR_INVALID_VALUE;  // the owning context of the function cannot change
    }
    if (result == CUDA_SUCCESS)
        result = node_set(node, given, "cuGraphExecKernelNodeSetParams");
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *given)
{
    if (!given)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    memcpy(&params.kernel, given, sizeof *given);
    return cuGraphExecNodeSetParams(exec, node, &params);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *given)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide = {0};
    memcpy(&wide, given, sizeof *given);
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &wide);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int enabled)
{
    NEED_READY();
    struct node *node = counterpart(exec, handle);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    node->disabled = !enabled;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int *enabled)
{
    NEED_READY();
    struct node *node = counterpart(exec, handle);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !node->disabled;
    return CUDA_SUCCESS;
}

static int cooperative(const struct node *node)
{
    const struct attribute_set *set = &node->kernel.attributes;
    return set->given >> CU_LAUNCH_ATTRIBUTE_COOPERATIVE & 1 && set->values[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative;
}

static CUgraphExecUpdateResult difference(const struct graph *old, const struct graph *new, struct node **where)
{
    if (old->nodes.count != new->nodes.count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < old->nodes.count; i++) {
        struct node *was = old->nodes.at[i], *is = new->nodes.at[i];
        *where = is;
        if (was->type != is->type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (was->before.count != is->before.count)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        for (size_t k = 0; k < is->before.count; k++)
            if (was->before.at[k]->index != is->before.at[k]->index)
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (is->type == CU_GRAPH_NODE_TYPE_KERNEL && was->kernel.function->context != is->kernel.function->context)
            return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        if (is->type == CU_GRAPH_NODE_TYPE_KERNEL && cooperative(was) != cooperative(is))
            return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
        CUgraphExecUpdateResult inside =
            is->type == CU_GRAPH_NODE_TYPE_GRAPH ? difference(was->child, is->child, where) : 0;
        if (inside)
            return inside;
    }
    *where = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// Node for node, in place: the handles of the first graph keep meaning the same nodes.
static void take_over(struct graph *old, const struct graph *new)
{
    for (size_t i = 0; i < old->nodes.count; i++) {
        struct node *was = old->nodes.at[i];
        const struct node *is = new->nodes.at[i];
        was->copy = is->copy;
        was->set = is->set;
        was->host = is->host;
        if (is->type == CU_GRAPH_NODE_TYPE_KERNEL)
            kernel_node_copy(&was->kernel, &is->kernel);
        else if (is->type == CU_GRAPH_NODE_TYPE_GRAPH)
            take_over(was->child, is->child);
    }
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode handle, CUgraph graph)
{
    NEED_READY();
    pthread_mutex_lock(&graph_lock);
    struct node *node = counterpart(exec, handle), *where;
    CUresult result = node && node->type == CU_GRAPH_NODE_TYPE_GRAPH && standin_is(graph, TAG_GRAPH)
                          ? check_nodes((struct graph *)graph, &where)
                          : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && difference(node->child, (struct graph *)graph, &where))
        result = CUDA_ERROR_INVALID_VALUE;  // the shape must stay
    if (result == CUDA_SUCCESS)
        take_over(node->child, (struct graph *)graph);
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    NEED_READY();
    if (!standin_is(exec, TAG_EXEC) || !standin_is(graph, TAG_GRAPH) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    struct node *where = NULL;
    pthread_mutex_lock(&graph_lock);
    *info = (CUgraphExecUpdateResultInfo){0};
    CUresult result = check_nodes((struct graph *)graph, &where);
    info->result = result == CUDA_SUCCESS
                       ? difference(((struct exec *)exec)->graph, (struct graph *)graph, &where)
                       : CU_GRAPH_EXEC_UPDATE_ERROR;
    info->errorNode = (CUgraphNode)where;
    if (info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS)
        take_over(((struct exec *)exec)->graph, (struct graph *)graph);
    pthread_mutex_unlock(&graph_lock);
    standin_record("{\"update\": {\"result\": %d}}", info->result);
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
