// Graphs of kernel nodes. Read in ROCm's clr: hipamd/src/hip_graph.cpp (ihipGraphAddKernelNode, and
// hipGraphExecKernelNodeSetParams of an older version) and hip_graph_internal.hpp (GraphKernelNode::getFunc).
// Assumed, not read: that later parameters are checked as the first ones are, that arguments are copied, hipGraphAddNode
// and hipGraph[Exec]NodeSetParams, attributes.
#include "standin_hip.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 64 };

struct node {
    struct object object;
    struct graph *graph;
    size_t index;
    hipKernelNodeParams params;  // with our own copy of the arguments
    const struct function *function;
    int cooperative;
};

struct graph {
    struct object object;
    struct graph *origin;  // what an executable graph was made from
    size_t count;
    struct node *nodes[MOST_NODES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The host's pointer is tried first; what is not registered must be a handle (getFunc).
static const struct function *function_of(const void *named)
{
    const struct function *function = registered_function(named);
    return function ? function : standin_is(named, TAG_FUNCTION) ? named : NULL;
}

static struct launch launch_of(const struct node *node, const hipKernelNodeParams *params, const char *call)
{
    return (struct launch){call,
                           function_of(params->func),
                           {params->gridDim.x, params->gridDim.y, params->gridDim.z},
                           {params->blockDim.x, params->blockDim.y, params->blockDim.z},
                           params->sharedMemBytes,
                           params->kernelParams,
                           params->extra,
                           node && node->cooperative,
                           true};
}

// Assumed: the runtime copies what the pointers point to, so that the program may free it afterwards.
static void **copied(const struct code *code, void **given)
{
    void **copy = given ? calloc(code->parameter_count + 1, sizeof *copy) : NULL;
    for (unsigned i = 0; copy && i < code->parameter_count; i++)
        copy[i] = memcpy(malloc(code->parameters[i].size + 1), given[i], code->parameters[i].size);
    return copy;
}

static hipError_t fill(struct node *node, const hipKernelNodeParams *params, const char *call)
{
    if (!params || !params->func)
        return hipErrorInvalidValue;
    struct launch launch = launch_of(node, params, call);
    if (!launch.function)
        return hipErrorInvalidDeviceFunction;
    hipError_t result = launch_check(&launch);
    bool refused = result == hipSuccess && standin_refuses_node(params->sharedMemBytes);
    if (refused)
        result = hipErrorInvalidValue;
    standin_record("{\"node\": {\"call\": \"%s\", \"index\": %zu, \"smem_bytes\": %u, \"error\": %d, \"refused\": %s}}",
                   call, node->index, params->sharedMemBytes, result, refused ? "true" : "false");
    if (result != hipSuccess)
        return result;
    node->params = *params;
    node->params.kernelParams = copied(launch.function->code, params->kernelParams);
    node->function = launch.function;
    return hipSuccess;
}

hipError_t hipGraphCreate(hipGraph_t *out, unsigned int flags)
{
    if (!out || flags)
        return hip_result(hipErrorInvalidValue);
    *out = (hipGraph_t)standin_new(sizeof(struct graph), TAG_GRAPH);
    return hipSuccess;
}

hipError_t hipGraphAddKernelNode(hipGraphNode_t *out, hipGraph_t handle, const hipGraphNode_t *after, size_t count,
                                 const hipKernelNodeParams *params)
{
    struct graph *graph = (struct graph *)handle;
    if (!out || !standin_is(graph, TAG_GRAPH) || !params || (count && !after) || graph->count == MOST_NODES)
        return hip_result(hipErrorInvalidValue);
    for (size_t i = 0; i < count; i++)
        if (!standin_is(after[i], TAG_NODE) || ((struct node *)after[i])->graph != graph)
            return hip_result(hipErrorInvalidValue);
    struct node *node = standin_new(sizeof *node, TAG_NODE);
    node->graph = graph;
    node->index = graph->count;
    hipError_t result = fill(node, params, "hipGraphAddKernelNode");
    if (result != hipSuccess) {
        standin_end(node);
        return hip_result(result);
    }
    graph->nodes[graph->count++] = node;
    *out = (hipGraphNode_t)node;
    return hipSuccess;
}

hipError_t hipGraphAddNode(hipGraphNode_t *out, hipGraph_t graph, const hipGraphNode_t *after, size_t count,
                           hipGraphNodeParams *params)
{
    if (!params || params->type != hipGraphNodeTypeKernel)
        return params ? (hipError_t)standin_unknown("a graph node of this type") : hip_result(hipErrorInvalidValue);
    return hipGraphAddKernelNode(out, graph, after, count, &params->kernel);
}

hipError_t hipGraphKernelNodeGetParams(hipGraphNode_t handle, hipKernelNodeParams *out)
{
    if (!standin_is(handle, TAG_NODE) || !out)
        return hip_result(hipErrorInvalidValue);
    *out = ((struct node *)handle)->params;
    return hipSuccess;
}

hipError_t hipGraphKernelNodeSetParams(hipGraphNode_t handle, const hipKernelNodeParams *params)
{
    if (!standin_is(handle, TAG_NODE))
        return hip_result(hipErrorInvalidValue);
    return hip_result(fill((struct node *)handle, params, "hipGraphKernelNodeSetParams"));
}

hipError_t hipGraphNodeSetParams(hipGraphNode_t handle, hipGraphNodeParams *params)
{
    return params && params->type == hipGraphNodeTypeKernel ? hipGraphKernelNodeSetParams(handle, &params->kernel)
                                                            : hip_result(hipErrorInvalidValue);
}

// Assumed: cooperative nodes must fit at once, as such launches must.
hipError_t hipGraphKernelNodeSetAttribute(hipGraphNode_t handle, hipKernelNodeAttrID id,
                                          const hipKernelNodeAttrValue *value)
{
    struct node *node = (struct node *)handle;
    if (!standin_is(node, TAG_NODE) || !value)
        return hip_result(hipErrorInvalidValue);
    if (id != hipLaunchAttributeCooperative)
        return hipSuccess;
    if (value->cooperative != 0 && value->cooperative != 1)
        return hip_result(hipErrorInvalidValue);
    struct launch launch = launch_of(node, &node->params, "check");
    launch.cooperative = value->cooperative;
    hipError_t result = launch_check(&launch);
    if (result == hipSuccess)
        node->cooperative = value->cooperative;
    return hip_result(result);
}

hipError_t hipGraphKernelNodeGetAttribute(hipGraphNode_t handle, hipKernelNodeAttrID id, hipKernelNodeAttrValue *out)
{
    if (!standin_is(handle, TAG_NODE) || !out)
        return hip_result(hipErrorInvalidValue);
    if (id == hipLaunchAttributeCooperative)
        out->cooperative = ((struct node *)handle)->cooperative;
    return hipSuccess;
}

hipError_t hipGraphInstantiate(hipGraphExec_t *out, hipGraph_t handle, hipGraphNode_t *wrong, char *log, size_t size)
{
    (void)wrong, (void)log, (void)size;
    struct graph *graph = (struct graph *)handle;
    if (!out || !standin_is(graph, TAG_GRAPH))
        return hip_result(hipErrorInvalidValue);
    struct graph *exec = standin_new(sizeof *exec, TAG_EXEC);
    exec->origin = graph;
    exec->count = graph->count;
    for (size_t i = 0; i < graph->count; i++) {
        exec->nodes[i] = standin_new(sizeof(struct node), TAG_NODE);
        struct object object = exec->nodes[i]->object;
        *exec->nodes[i] = *graph->nodes[i];
        exec->nodes[i]->object = object;
    }
    *out = (hipGraphExec_t)exec;
    return hipSuccess;
}

// The node of the graph names the executable's (GetClonedNode), and itself stays as it is.
hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t handle, hipGraphNode_t which, const hipKernelNodeParams *params)
{
    struct graph *exec = (struct graph *)handle;
    const struct node *node = (const struct node *)which;
    if (!standin_is(exec, TAG_EXEC) || !standin_is(node, TAG_NODE) || node->graph != exec->origin || !params)
        return hip_result(hipErrorInvalidValue);
    return hip_result(fill(exec->nodes[node->index], params, "hipGraphExecKernelNodeSetParams"));
}

hipError_t hipGraphExecNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node, hipGraphNodeParams *params)
{
    return params && params->type == hipGraphNodeTypeKernel ? hipGraphExecKernelNodeSetParams(exec, node, &params->kernel)
                                                            : hip_result(hipErrorInvalidValue);
}

hipError_t hipGraphLaunch(hipGraphExec_t handle, hipStream_t where)
{
    const struct graph *exec = (const struct graph *)handle;
    const struct stream *stream;
    if (!standin_is(exec, TAG_EXEC))
        return hip_result(hipErrorInvalidValue);
    hipError_t result = stream_of(where, &stream);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < exec->count && result == hipSuccess; i++) {
        struct launch launch = launch_of(exec->nodes[i], &exec->nodes[i]->params, "hipGraphLaunch");
        result = launch_check(&launch);
        launch_record(&launch, stream, result, false);
    }
    pthread_mutex_unlock(&lock);
    return hip_result(result);
}

static hipError_t end(void *handle, enum tag tag)
{
    if (!standin_is(handle, tag))
        return hip_result(hipErrorInvalidValue);
    standin_end(handle);
    return hipSuccess;
}

hipError_t hipGraphDestroy(hipGraph_t graph)
{
    return end(graph, TAG_GRAPH);
}

hipError_t hipGraphExecDestroy(hipGraphExec_t exec)
{
    return end(exec, TAG_EXEC);
}
