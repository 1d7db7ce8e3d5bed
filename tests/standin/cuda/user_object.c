// User objects: what a program ties to the life of a graph; graphs and their executables hold references.
#include "standin.h"

#include <stdlib.h>

struct user_object {
    struct object object;
    void *data;
    CUhostFn destroy;
    atomic_long references;
};

static CUresult change(struct user_object *object, long by)
{
    if (!standin_is(object, TAG_USER_OBJECT))
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_fetch_add(&object->references, by) + by > 0)
        return CUDA_SUCCESS;
    standin_end(object);
    object->destroy(object->data);
    return CUDA_SUCCESS;
}

void graph_keep(struct graph *graph, struct user_object *object, unsigned count)
{
    graph->kept = standin_grow(graph->kept, graph->kept_count, &graph->kept_room, sizeof *graph->kept);
    graph->kept[graph->kept_count++] = (struct kept){object, count};
}

void graph_keep_same(struct graph *graph, const struct graph *other)
{
    for (size_t i = 0; i < other->kept_count; i++) {
        change(other->kept[i].object, other->kept[i].count);
        graph_keep(graph, other->kept[i].object, other->kept[i].count);
    }
}

void graph_let_go(struct graph *graph)
{
    for (size_t i = 0; i < graph->kept_count; i++)
        change(graph->kept[i].object, -(long)graph->kept[i].count);
    graph->kept_count = 0;
}

CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy, unsigned int references, unsigned int flags)
{
    NEED_READY();
    if (!out || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user_object *object = standin_new(sizeof *object, TAG_USER_OBJECT);
    object->data = data;
    object->destroy = destroy;
    atomic_store(&object->references, references);
    *out = (CUuserObject)object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    return change((struct user_object *)object, count);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    return change((struct user_object *)object, -(long)count);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    NEED_READY();
    if (!standin_is(graph, TAG_GRAPH) || !standin_is(object, TAG_USER_OBJECT) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))  // moved references are the caller's own
        change((struct user_object *)object, count);
    graph_keep((struct graph *)graph, (struct user_object *)object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject wanted, unsigned int count)
{
    NEED_READY();
    struct graph *graph = (struct graph *)handle;
    if (!standin_is(graph, TAG_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->kept_count; i++)
        if (graph->kept[i].object == (struct user_object *)wanted && graph->kept[i].count >= count) {
            graph->kept[i].count -= count;
            return change(graph->kept[i].object, -(long)count);
        }
    return CUDA_ERROR_INVALID_VALUE;
}
