// Nodes of graphs: kernels with their arguments and attributes, copies, fills, host calls, child graphs.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

// --- kernel nodes ---------------------------------------------------------------------------------

CUresult kernel_node_read(struct launch *launch, const CUDA_KERNEL_NODE_PARAMS_v2 *given, const char *call)
{
    *launch = (struct launch){
        .call = call,
        .grid = {given->gridDimX, given->gridDimY, given->gridDimZ},
        .block = {given->blockDimX, given->blockDimY, given->blockDimZ},
        .smem_bytes = given->sharedMemBytes,
        .parameters = given->kernelParams,
        .extra = given->extra,
    };
    if (given->func)
        return function_of(given->func, &launch->function);
    if (!standin_is(given->kern, TAG_KERNEL))
        return CUDA_ERROR_INVALID_VALUE;
    struct context *context = given->ctx ? (struct context *)given->ctx : standin_current();
    if (!standin_is(context, TAG_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    launch->by_kernel = true;
    return kernel_function((struct kernel *)given->kern, context, &launch->function);
}

// What a program was given by cuGraphKernelNodeGetParams is valid until the node changes. The old pointers are
// kept, all null, so that a program that goes on to use them is told instead of reading freed memory.
static void retire(struct kernel_node *node)
{
    static _Atomic(void **) retired;
    unsigned count = node->parameters ? node->function->code->parameter_count : 0;
    if (node->parameters) {
        memset(node->parameters, 0, count * sizeof *node->parameters);
        node->parameters[count] = atomic_exchange(&retired, node->parameters);
    }
    free(node->bytes);
}

// Leaves the node as it was when the launch it describes is not allowed.
CUresult kernel_node_fill(struct kernel_node *node, const struct launch *launch)
{
    const struct code *code = launch->function->code;
    struct launch checked = *launch;
    checked.attributes = &node->attributes;
    CUresult result = launch_check(&checked);
    if (result != CUDA_SUCCESS)
        return result;
    unsigned char *bytes = calloc(1, code->parameter_bytes + 1);
    if ((result = launch_parameters(code, launch->parameters, launch->extra, bytes)) != CUDA_SUCCESS) {
        free(bytes);
        return result;
    }
    retire(node);
    node->bytes = bytes;
    node->parameters = calloc(code->parameter_count + 1, sizeof *node->parameters);
    for (unsigned i = 0; i < code->parameter_count; i++)
        node->parameters[i] = bytes + code->parameters[i].offset;
    node->function = launch->function;
    node->by_kernel = launch->by_kernel;
    memcpy(node->grid, launch->grid, sizeof node->grid);
    memcpy(node->block, launch->block, sizeof node->block);
    node->smem_bytes = launch->smem_bytes;
    return CUDA_SUCCESS;
}

struct launch kernel_node_launch(const struct kernel_node *node, const char *call)
{
    struct launch launch = {
        .call = call,
        .function = node->function,
        .by_kernel = node->by_kernel,
        .smem_bytes = node->smem_bytes,
        .parameters = node->parameters,
        .attributes = &node->attributes,
    };
    memcpy(launch.grid, node->grid, sizeof launch.grid);
    memcpy(launch.block, node->block, sizeof launch.block);
    return launch;
}

void kernel_node_copy(struct kernel_node *to, const struct kernel_node *from)
{
    struct launch launch = kernel_node_launch(from, "copy");
    to->attributes = from->attributes;
    if (kernel_node_fill(to, &launch) == CUDA_SUCCESS)
        return;
    // The kernel's limits were lowered since: instantiation and launch look at them again.
    *to = *from;
    to->bytes = NULL;
    to->parameters = NULL;
}

static CUresult kernel_set(struct node *node, const CUDA_KERNEL_NODE_PARAMS_v2 *given, const char *call)
{
    struct launch launch;
    CUresult result = kernel_node_read(&launch, given, call);
    bool refused = result == CUDA_SUCCESS && standin_refuses_node(launch.smem_bytes);
    if (refused)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = kernel_node_fill(&node->kernel, &launch);
    standin_record("{\"node\": {\"call\": \"%s\", \"index\": %zu, \"smem_bytes\": %u, \"error\": %d, \"refused\": %s}}",
                   call, node->index, given->sharedMemBytes, result, refused ? "true" : "false");
    return result;
}

static void kernel_get(const struct kernel_node *node, CUDA_KERNEL_NODE_PARAMS_v2 *out)
{
    *out = (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = node->by_kernel ? NULL : (CUfunction)node->function,
        .gridDimX = node->grid[0], .gridDimY = node->grid[1], .gridDimZ = node->grid[2],
        .blockDimX = node->block[0], .blockDimY = node->block[1], .blockDimZ = node->block[2],
        .sharedMemBytes = node->smem_bytes,
        .kernelParams = node->parameters,
        .kern = node->by_kernel ? (CUkernel)node->function->kernel : NULL,
        .ctx = (CUcontext)node->function->context,
    };
}

static CUresult node_of(CUgraphNode handle, CUgraphNodeType type, struct node **out)
{
    NEED_READY();
    *out = (struct node *)handle;
    return standin_is(handle, TAG_NODE) && (*out)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Version 1 ends where version 2 goes on with `kern` and `ctx`.
static CUDA_KERNEL_NODE_PARAMS_v2 widened(const CUDA_KERNEL_NODE_PARAMS_v1 *given)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide = {0};
    memcpy(&wide, given, sizeof *given);
    return wide;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *out)
{
    struct node *node;
    CUresult result = out ? node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        kernel_get(&node->kernel, out);
    return result;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1 *out)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide;
    CUresult result = cuGraphKernelNodeGetParams_v2(handle, &wide);
    if (result == CUDA_SUCCESS)
        memcpy(out, &wide, sizeof *out);
    return result;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *given)
{
    struct node *node;
    CUresult result = given ? node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node) : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? kernel_set(node, given, "cuGraphKernelNodeSetParams") : result;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v1 *given)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(given);
    return cuGraphKernelNodeSetParams_v2(handle, &wide);
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id, CUkernelNodeAttrValue *out)
{
    struct node *node;
    CUresult result = out ? node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS || id <= 0 || id >= CU_LAUNCH_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    if (id == CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        out->sharedMemCarveout = (unsigned)CU_SHAREDMEM_CARVEOUT_DEFAULT;  // cuda.h: no preference; 0 prefers L1
    if (node->kernel.attributes.given >> id & 1)
        *out = node->kernel.attributes.values[id];
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID id, const CUkernelNodeAttrValue *value)
{
    struct node *node;
    CUresult result = value ? node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS || id <= 0 || id >= CU_LAUNCH_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    bool refused = standin_refuses("node-attribute");
    struct attribute_set before = node->kernel.attributes;
    if (!refused) {
        attributes_add(&node->kernel.attributes, id, value);
        if (id == CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            && value->sharedMemCarveout == (unsigned)CU_SHAREDMEM_CARVEOUT_DEFAULT)
            node->kernel.attributes.given &= ~(1ull << id);
        struct launch launch = kernel_node_launch(&node->kernel, "check");
        result = launch_check(&launch);
    } else
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        node->kernel.attributes = before;
    standin_record("{\"node_attribute\": {\"index\": %zu, \"attribute\": %d, \"error\": %d, \"refused\": %s}}",
                   node->index, id, result, refused ? "true" : "false");
    return result;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
    struct node *target, *source;
    CUresult result = node_of(to, CU_GRAPH_NODE_TYPE_KERNEL, &target);
    if (result == CUDA_SUCCESS && (result = node_of(from, CU_GRAPH_NODE_TYPE_KERNEL, &source)) == CUDA_SUCCESS)
        target->kernel.attributes = source->kernel.attributes;
    return result;
}

// --- any node -------------------------------------------------------------------------------------

CUresult node_set(struct node *node, const CUgraphNodeParams *given, const char *call)
{
    CUDA_KERNEL_NODE_PARAMS_v2 kernel;
    if (given->type != node->type)
        return CUDA_ERROR_INVALID_VALUE;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        memcpy(&kernel, &given->kernel, sizeof kernel);
        return kernel_set(node, &kernel, call);
    case CU_GRAPH_NODE_TYPE_MEMCPY: node->copy = given->memcpy.copyParams; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET: memcpy(&node->set, &given->memset, sizeof node->set); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST: memcpy(&node->host, &given->host, sizeof node->host); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if (!standin_is(given->graph.graph, TAG_GRAPH))
            return CUDA_ERROR_INVALID_VALUE;
        node->child = graph_clone((struct graph *)given->graph.graph);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: node->event = given->eventRecord.event; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: node->event = given->eventWait.event; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    default: return standin_unknown("a graph node of this type");
    }
}

static CUresult add(CUgraphNode *out, CUgraph handle, const CUgraphNode *after, size_t count,
                    const CUgraphNodeParams *given, const char *call)
{
    NEED_READY();
    struct graph *graph = (struct graph *)handle;
    if (!out || !given || !standin_is(graph, TAG_GRAPH) || (count && !after))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!standin_is(after[i], TAG_NODE) || ((struct node *)after[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&graph_lock);
    struct node *node = graph_add(graph, given->type, NULL);
    for (size_t i = 0; i < count; i++)
        nodes_add(&node->before, (struct node *)after[i]);
    CUresult result = node_set(node, given, call);
    if (result == CUDA_SUCCESS)
        *out = (CUgraphNode)node;
    else {
        standin_end(node);
        node->before.count = 0;
    }
    pthread_mutex_unlock(&graph_lock);
    return result;
}

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *data,
                           size_t count, CUgraphNodeParams *given)
{
    (void)data;
    return add(out, graph, after, count, given, "cuGraphAddNode");
}

CUresult cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *data,
                           size_t count, CUgraphNodeParams *given)
{
    (void)data;
    return add(out, graph, after, count, given, "cuGraphAddNode");
}

CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                        CUgraphNodeParams *given)
{
    return add(out, graph, after, count, given, "cuGraphAddNode");
}

CUresult cuGraphNodeSetParams_v2(CUgraphNode handle, CUgraphNodeParams *given)
{
    NEED_READY();
    if (!standin_is(handle, TAG_NODE) || !given)
        return CUDA_ERROR_INVALID_VALUE;
    return node_set((struct node *)handle, given, "cuGraphNodeSetParams");
}

CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams *given)
{
    return cuGraphNodeSetParams_v2(handle, given);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *given)
{
    if (!given)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    memcpy(&params.kernel, given, sizeof *given);
    return add(out, graph, after, count, &params, "cuGraphAddKernelNode");
}

CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *given)
{
    CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(given);
    return cuGraphAddKernelNode_v2(out, graph, after, count, &wide);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_MEMCPY3D *copy, CUcontext context)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    params.memcpy.copyParams = *copy;
    params.memcpy.copyCtx = context;
    return add(out, graph, after, count, &params, "cuGraphAddMemcpyNode");
}

CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context)
{
    (void)context;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    memcpy(&params.memset, set, sizeof *set);
    return add(out, graph, after, count, &params, "cuGraphAddMemsetNode");
}

CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                            const CUDA_HOST_NODE_PARAMS *host)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
    memcpy(&params.host, host, sizeof *host);
    return add(out, graph, after, count, &params, "cuGraphAddHostNode");
}

CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(out, graph, after, count, &params, "cuGraphAddEmptyNode");
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    params.graph.graph = child;
    return add(out, graph, after, count, &params, "cuGraphAddChildGraphNode");
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *out)
{
    struct node *node;
    CUresult result = out ? node_of(handle, CU_GRAPH_NODE_TYPE_GRAPH, &node) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *out = (CUgraph)node->child;
    return result;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *out)
{
    struct node *node;
    CUresult result = node_of(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node);
    if (result == CUDA_SUCCESS)
        *out = node->copy;
    return result;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *out)
{
    struct node *node;
    CUresult result = node_of(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node);
    if (result == CUDA_SUCCESS)
        *out = node->set;
    return result;
}
