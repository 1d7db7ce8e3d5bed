// Stream capture: what is asked of a capturing stream becomes a node; events carry captures between streams.
#include "standin.h"

#include <time.h>

atomic_int standin_captures;
static atomic_ullong next_capture = 1;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

#define LOCKED(result, expression) \
    pthread_mutex_lock(&graph_lock); \
    CUresult result = expression; \
    pthread_mutex_unlock(&graph_lock)

static CUresult broken(struct capture *capture, CUresult why)
{
    atomic_store(&capture->broken, 1);
    return why;
}

CUresult capture_touch(struct stream *stream)
{
    struct capture *capture = atomic_load(&stream->capture);
    return capture ? broken(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

// --- operations that become nodes -----------------------------------------------------------------

static CUresult capture_node(struct stream *stream, CUgraphNodeType type, struct node **out)
{
    struct capture *capture = atomic_load(&stream->capture);
    if (!capture || atomic_load(&capture->broken))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *out = graph_add(capture->graph, type, &stream->tips);
    stream->tips.count = 0;
    nodes_add(&stream->tips, *out);
    return CUDA_SUCCESS;
}

static CUresult add_kernel(struct stream *stream, const struct launch *launch)
{
    struct node *node;
    CUresult result = capture_node(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if (result != CUDA_SUCCESS)
        return result;
    if (launch->attributes)
        node->kernel.attributes = *launch->attributes;
    CUlaunchAttributeValue priority = {.priority = stream->priority};  // a captured node keeps its stream's
    if (!(node->kernel.attributes.given >> CU_LAUNCH_ATTRIBUTE_PRIORITY & 1))
        attributes_add(&node->kernel.attributes, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority);
    return kernel_node_fill(&node->kernel, launch);
}

CUresult capture_kernel(struct stream *stream, const struct launch *launch)
{
    LOCKED(result, add_kernel(stream, launch));
    return result;
}

CUresult capture_copy(struct stream *stream, const CUDA_MEMCPY3D *copy)
{
    struct node *node;
    LOCKED(result, capture_node(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    if (result == CUDA_SUCCESS)
        node->copy = *copy;
    return result;
}

CUresult capture_set(struct stream *stream, const CUDA_MEMSET_NODE_PARAMS *set)
{
    struct node *node;
    LOCKED(result, capture_node(stream, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    if (result == CUDA_SUCCESS)
        node->set = *set;
    return result;
}

CUresult capture_host(struct stream *stream, CUhostFn function, void *data)
{
    struct node *node;
    LOCKED(result, capture_node(stream, CU_GRAPH_NODE_TYPE_HOST, &node));
    if (result == CUDA_SUCCESS)
        node->host = (CUDA_HOST_NODE_PARAMS){.fn = function, .userData = data};
    return result;
}

CUresult capture_graph(struct stream *stream, struct graph *graph)
{
    struct node *node;
    LOCKED(result, capture_node(stream, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    if (result == CUDA_SUCCESS)
        node->child = graph_clone(graph);
    return result;
}

static void join(struct capture *capture, struct stream *stream)
{
    capture->streams =
        standin_grow(capture->streams, capture->stream_count, &capture->stream_room, sizeof *capture->streams);
    capture->streams[capture->stream_count++] = stream;
    atomic_store(&stream->capture, capture);
}

// The legacy stream waits for every blocking stream of its context, which a capture cannot express.
static _Atomic(struct capture *) blocking_capture;

CUresult capture_implicit(const struct stream *stream)
{
    if (!atomic_load_explicit(&standin_captures, memory_order_relaxed) || stream != stream->context->legacy)
        return CUDA_SUCCESS;
    struct capture *capture = atomic_load(&blocking_capture);
    if (!capture || capture->origin->context != stream->context)
        return CUDA_SUCCESS;
    return broken(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

// --- beginning and end ----------------------------------------------------------------------------

static CUresult begin(CUstream handle, struct graph *graph, const CUgraphNode *after, size_t count,
                      CUstreamCaptureMode mode, bool per_thread)
{
    NEED_CONTEXT(context);
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&stream->capture))
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = standin_new(sizeof *capture, TAG_CAPTURE);
    capture->graph = graph ? graph : graph_new();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->id = atomic_fetch_add(&next_capture, 1);
    stream->tips.count = 0;
    for (size_t i = 0; i < count; i++)
        nodes_add(&stream->tips, (struct node *)after[i]);
    join(capture, stream);
    if (!(stream->flags & CU_STREAM_NON_BLOCKING))
        atomic_store(&blocking_capture, capture);
    atomic_fetch_add(&standin_captures, 1);
    return CUDA_SUCCESS;
}

// Every forked stream must have been waited for by the stream that began. A captured node waits for earlier ones
// only, so one pass from the last to the first finds all that the end waits for.
static bool all_joined(const struct capture *capture)
{
    const struct nodes *nodes = &capture->graph->nodes;
    unsigned mark = ++capture->graph->mark;
    for (size_t i = 0; i < capture->origin->tips.count; i++)
        capture->origin->tips.at[i]->mark = mark;
    for (size_t i = nodes->count; i-- > 0;)
        for (size_t k = 0; nodes->at[i]->mark == mark && k < nodes->at[i]->before.count; k++)
            nodes->at[i]->before.at[k]->mark = mark;
    for (size_t i = 0; i < capture->stream_count; i++)
        for (size_t k = 0; k < capture->streams[i]->tips.count; k++)
            if (capture->streams[i]->tips.at[k]->mark != mark)
                return false;
    return true;
}

static CUresult end(CUstream handle, CUgraph *out, bool per_thread)
{
    NEED_READY();
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    struct capture *capture = atomic_load(&stream->capture);
    *out = NULL;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return broken(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (atomic_load(&capture->broken))
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    for (size_t i = 0; i < capture->stream_count; i++)
        atomic_store(&capture->streams[i]->capture, NULL);
    if (atomic_load(&blocking_capture) == capture)
        atomic_store(&blocking_capture, NULL);
    atomic_fetch_sub(&standin_captures, 1);
    standin_end(capture);
    if (result == CUDA_SUCCESS)
        *out = (CUgraph)capture->graph;
    standin_record("{\"capture\": {\"nodes\": %zu, \"streams\": %zu, \"error\": %d}}", capture->graph->nodes.count,
                   capture->stream_count, result);
    return result;
}

#define BOTH(name, types, ...) \
    CUresult name types \
    { \
        const bool per_thread = false; \
        LOCKED(result, __VA_ARGS__); \
        return result; \
    } \
    CUresult name##_ptsz types \
    { \
        const bool per_thread = true; \
        LOCKED(result, __VA_ARGS__); \
        return result; \
    }

BOTH(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
     begin(stream, NULL, NULL, 0, mode, per_thread))
BOTH(cuStreamBeginCaptureToGraph,
     (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *data, size_t count,
      CUstreamCaptureMode mode),
     ((void)data, standin_is(graph, TAG_GRAPH) ? begin(stream, (struct graph *)graph, after, count, mode, per_thread)
                                               : CUDA_ERROR_INVALID_VALUE))
BOTH(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end(stream, graph, per_thread))

// --- what is being captured -----------------------------------------------------------------------

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **tips, const CUgraphEdgeData **data, size_t *count, bool per_thread)
{
    NEED_READY();
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS || !status)
        return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
    struct capture *capture = atomic_load(&stream->capture);
    *status = !capture                        ? CU_STREAM_CAPTURE_STATUS_NONE
              : atomic_load(&capture->broken) ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = capture->id;
    if (graph)
        *graph = (CUgraph)capture->graph;
    if (tips)
        *tips = (const CUgraphNode *)stream->tips.at;
    if (data)
        *data = NULL;
    if (count)
        *count = stream->tips.count;
    return CUDA_SUCCESS;
}

BOTH(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
     info(stream, status, NULL, NULL, NULL, NULL, NULL, per_thread))
BOTH(cuStreamGetCaptureInfo_v2,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **tips,
      size_t *count),
     info(stream, status, id, graph, tips, NULL, count, per_thread))
BOTH(cuStreamGetCaptureInfo_v3,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **tips,
      const CUgraphEdgeData **data, size_t *count),
     info(stream, status, id, graph, tips, data, count, per_thread))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult update(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS || !atomic_load(&stream->capture))
        return result == CUDA_SUCCESS ? CUDA_ERROR_ILLEGAL_STATE : result;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        stream->tips.count = 0;
    for (size_t i = 0; i < count; i++)
        nodes_add(&stream->tips, (struct node *)nodes[i]);
    return CUDA_SUCCESS;
}

BOTH(cuStreamUpdateCaptureDependencies_v2,
     (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count, unsigned int flags),
     ((void)data, update(stream, nodes, count, flags, per_thread)))

// --- events between streams -----------------------------------------------------------------------

static CUresult event_record(CUevent handle, CUstream where, unsigned flags, bool per_thread)
{
    NEED_READY();
    struct event *event = (struct event *)handle;
    struct stream *stream;
    if (!standin_is(event, TAG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags)
        return standin_unknown("cuEventRecordWithFlags(flags)");
    CUresult result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->context != event->context)
        return CUDA_ERROR_INVALID_HANDLE;
    event->capture = atomic_load(&stream->capture);
    event->tips.count = 0;
    if (event->capture) {
        nodes_copy(&event->tips, &stream->tips);
        return atomic_load(&event->capture->broken) ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->recorded_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return CUDA_SUCCESS;
}

static CUresult event_wait(CUstream where, CUevent handle, unsigned flags, bool per_thread)
{
    NEED_READY();
    struct event *event = (struct event *)handle;
    struct stream *stream;
    if (!standin_is(event, TAG_EVENT))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags)
        return standin_unknown("cuStreamWaitEvent(flags)");
    CUresult result = stream_of(where, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    struct capture *here = atomic_load(&stream->capture), *there = event->capture;
    if (there && !standin_is(there, TAG_CAPTURE))
        there = NULL;
    if (!here && !there)
        return CUDA_SUCCESS;
    if (!there)
        return broken(here, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (here && here != there)
        return broken(there, broken(here, CUDA_ERROR_STREAM_CAPTURE_MERGE));
    if (!here) {
        stream->tips.count = 0;
        join(there, stream);
    }
    for (size_t i = 0; i < event->tips.count; i++)
        nodes_add(&stream->tips, event->tips.at[i]);
    return CUDA_SUCCESS;
}

BOTH(cuEventRecord, (CUevent event, CUstream stream), event_record(event, stream, 0, per_thread))
BOTH(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
     event_record(event, stream, flags, per_thread))
BOTH(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
     event_wait(stream, event, flags, per_thread))
