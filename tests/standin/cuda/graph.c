// Graphs: nodes, what they wait for, clones. Nodes keep their index for life, so a clone's are found by it.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t graph_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint next_graph = 1;

#define LOCK() pthread_mutex_lock(&graph_lock)
#define UNLOCK() pthread_mutex_unlock(&graph_lock)

void nodes_add(struct nodes *nodes, struct node *node)
{
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->at[i] == node)
            return;
    nodes->at = standin_grow(nodes->at, nodes->count, &nodes->room, sizeof *nodes->at);
    nodes->at[nodes->count++] = node;
}

void nodes_copy(struct nodes *to, const struct nodes *from)
{
    to->count = 0;
    for (size_t i = 0; i < from->count; i++)
        nodes_add(to, from->at[i]);
}

struct graph *graph_new(void)
{
    struct graph *graph = standin_new(sizeof *graph, TAG_GRAPH);
    graph->id = atomic_fetch_add(&next_graph, 1);
    return graph;
}

struct node *graph_add(struct graph *graph, CUgraphNodeType type, const struct nodes *before)
{
    struct node *node = standin_new(sizeof *node, TAG_NODE);
    node->graph = graph;
    node->index = graph->nodes.count;
    node->type = type;
    if (before)
        nodes_copy(&node->before, before);
    struct nodes *nodes = &graph->nodes;
    nodes->at = standin_grow(nodes->at, nodes->count, &nodes->room, sizeof *nodes->at);
    nodes->at[nodes->count++] = node;
    return node;
}

static bool alive(const struct node *node)
{
    return atomic_load(&node->object.alive);
}

struct graph *graph_clone(const struct graph *graph)
{
    struct graph *clone = graph_new();
    clone->origin = (struct graph *)graph;
    graph_keep_same(clone, graph);
    for (size_t i = 0; i < graph->nodes.count; i++) {
        struct node *from = graph->nodes.at[i], *to = graph_add(clone, from->type, NULL);
        to->origin = from;
        to->copy = from->copy;
        to->set = from->set;
        to->host = from->host;
        to->event = from->event;
        to->disabled = from->disabled;
        to->child = from->child ? graph_clone(from->child) : NULL;
        if (from->type == CU_GRAPH_NODE_TYPE_KERNEL && alive(from))
            kernel_node_copy(&to->kernel, &from->kernel);
        if (!alive(from))
            standin_end(to);
    }
    for (size_t i = 0; i < graph->nodes.count; i++)
        for (size_t k = 0; k < graph->nodes.at[i]->before.count; k++)
            nodes_add(&clone->nodes.at[i]->before, clone->nodes.at[graph->nodes.at[i]->before.at[k]->index]);
    return clone;
}

static bool visit(struct node *node, unsigned mark, struct nodes *out)
{
    if (node->mark == mark)
        return true;
    if (node->mark == mark - 1)
        return false;  // it waits for itself
    node->mark = mark - 1;
    for (size_t i = 0; i < node->before.count; i++)
        if (!visit(node->before.at[i], mark, out))
            return false;
    node->mark = mark;
    out->at = standin_grow(out->at, out->count, &out->room, sizeof *out->at);
    out->at[out->count++] = node;
    return true;
}

bool graph_order(struct graph *graph, struct nodes *out)
{
    unsigned mark = graph->mark += 2;
    for (size_t i = 0; i < graph->nodes.count; i++)
        if (alive(graph->nodes.at[i]) && !visit(graph->nodes.at[i], mark, out))
            return false;
    return true;
}

// --- the calls ------------------------------------------------------------------------------------

CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
    NEED_READY();
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUgraph)graph_new();
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *out, CUgraph graph)
{
    NEED_READY();
    if (!out || !standin_is(graph, TAG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    *out = (CUgraph)graph_clone((struct graph *)graph);
    UNLOCK();
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    NEED_READY();
    if (!standin_is(graph, TAG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    standin_end(graph);
    graph_let_go((struct graph *)graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode handle)
{
    NEED_READY();
    struct node *node = (struct node *)handle;
    if (!standin_is(node, TAG_NODE))
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    standin_end(node);
    node->before.count = 0;
    for (size_t i = 0; i < node->graph->nodes.count; i++) {
        struct nodes *before = &node->graph->nodes.at[i]->before;
        size_t kept = 0;
        for (size_t k = 0; k < before->count; k++)
            if (before->at[k] != node)
                before->at[kept++] = before->at[k];
        before->count = kept;
    }
    UNLOCK();
    return CUDA_SUCCESS;
}

// Fills `out` with at most *count nodes; without `out` says how many there are. What is over becomes null.
static void give(const struct nodes *found, CUgraphNode *out, size_t *count)
{
    for (size_t i = 0; out && i < *count; i++)
        out[i] = i < found->count ? (CUgraphNode)found->at[i] : NULL;
    if (!out || *count > found->count)
        *count = found->count;
}

static CUresult list(CUgraph handle, CUgraphNode *out, size_t *count, bool roots)
{
    NEED_READY();
    struct graph *graph = (struct graph *)handle;
    if (!standin_is(graph, TAG_GRAPH) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct nodes found = {0};
    LOCK();
    for (size_t i = 0; i < graph->nodes.count; i++) {
        struct node *node = graph->nodes.at[i];
        if (!alive(node) || (roots && node->before.count))
            continue;
        found.at = standin_grow(found.at, found.count, &found.room, sizeof *found.at);
        found.at[found.count++] = node;
    }
    UNLOCK();
    give(&found, out, count);
    free(found.at);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count)
{
    return list(graph, out, count, false);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *out, size_t *count)
{
    return list(graph, out, count, true);
}

CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    NEED_READY();
    struct graph *graph = (struct graph *)handle;
    if (!standin_is(graph, TAG_GRAPH) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct nodes first = {0}, last = {0};
    LOCK();
    for (size_t i = 0; i < graph->nodes.count; i++)
        for (size_t k = 0; k < graph->nodes.at[i]->before.count; k++) {
            first.at = standin_grow(first.at, first.count, &first.room, sizeof *first.at);
            last.at = standin_grow(last.at, last.count, &last.room, sizeof *last.at);
            first.at[first.count++] = graph->nodes.at[i]->before.at[k];
            last.at[last.count++] = graph->nodes.at[i];
        }
    UNLOCK();
    size_t again = *count;
    give(&first, from, count);
    give(&last, to, &again);
    if (data)
        memset(data, 0, *count * sizeof *data);
    free(first.at);
    free(last.at);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *data, size_t *count)
{
    NEED_READY();
    if (!standin_is(node, TAG_NODE) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    give(&((struct node *)node)->before, out, count);
    UNLOCK();
    if (data)
        memset(data, 0, *count * sizeof *data);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, size_t *count)
{
    return cuGraphNodeGetDependencies_v2(node, out, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode *out, CUgraphEdgeData *data, size_t *count)
{
    NEED_READY();
    struct node *node = (struct node *)handle;
    if (!standin_is(node, TAG_NODE) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct nodes found = {0};
    LOCK();
    for (size_t i = 0; i < node->graph->nodes.count; i++)
        for (size_t k = 0; k < node->graph->nodes.at[i]->before.count; k++)
            if (node->graph->nodes.at[i]->before.at[k] == node)
                nodes_add(&found, node->graph->nodes.at[i]);
    UNLOCK();
    give(&found, out, count);
    free(found.at);
    if (data)
        memset(data, 0, *count * sizeof *data);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *out, size_t *count)
{
    return cuGraphNodeGetDependentNodes_v2(node, out, NULL, count);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *data, size_t count)
{
    (void)data;
    NEED_READY();
    for (size_t i = 0; i < count; i++)
        if (!standin_is(from[i], TAG_NODE) || !standin_is(to[i], TAG_NODE)
            || ((struct node *)from[i])->graph != (struct graph *)graph
            || ((struct node *)to[i])->graph != (struct graph *)graph)
            return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    for (size_t i = 0; i < count; i++)
        nodes_add(&((struct node *)to[i])->before, (struct node *)from[i]);
    UNLOCK();
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    NEED_READY();
    if (!standin_is(node, TAG_NODE) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = ((struct node *)node)->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph)
{
    NEED_READY();
    if (!standin_is(node, TAG_NODE) || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = (CUgraph)((struct node *)node)->graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode handle, CUgraph clone)
{
    NEED_READY();
    const struct node *node = (const struct node *)handle;
    const struct graph *graph = (const struct graph *)clone;
    if (!standin_is(node, TAG_NODE) || !standin_is(graph, TAG_GRAPH) || node->index >= graph->nodes.count
        || graph->nodes.at[node->index]->origin != node)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUgraphNode)graph->nodes.at[node->index];
    return CUDA_SUCCESS;
}
