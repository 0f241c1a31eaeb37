/* Stream capture: streams that record a graph instead of working, and what may not be called meanwhile. */
#include "driver.h"

#include <stdlib.h>

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult capture_spoil(struct capture *capture)
{
    capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* A call that may synchronise is refused while a capture is active. Whose capture counts depends on the modes of the
 * thread and of the capture: a query of an event by any thread spoils a capture of global mode. */
CUresult capture_guard(void)
{
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = driver.captures; capture; capture = capture->next) {
        bool is_own_thread = pthread_equal(capture->thread, pthread_self());
        if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        if (is_own_thread ||
            (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL))
            result = capture_spoil(capture);
    }
    return result;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old_mode = thread_mode;
    thread_mode = *mode;
    *mode = old_mode;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    WITH_STREAM(stream, handle);
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = malloc(sizeof *capture);
    *capture = (struct capture){.graph = graph_new(false),
                                .origin = stream,
                                .thread = pthread_self(),
                                .mode = mode,
                                .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
                                .next = driver.captures};
    capture->id = capture->graph->object.number;
    stream->capture = driver.captures = capture;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream handle)
{
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* Nothing records into it any more. */
static void detach(struct capture *capture)
{
    for (struct stream *stream = NULL; (stream = object_next(stream, OBJECT_STREAM));)
        if (stream->capture == capture)
            stream->capture = NULL;
    for (struct event *event = NULL; (event = object_next(event, OBJECT_EVENT));)
        if (event->capture == capture)
            event->capture = NULL;
    struct capture **link = &driver.captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
}

/* Its stream is destroyed, so that the capture cannot be ended. */
void capture_abandon(struct capture *capture)
{
    detach(capture);
    graph_free(capture->graph);
    free(capture);
}

/* What is recorded is not held to the graph's own nodes. */
EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
                                              CUgraphRecaptureCallback callback, void *data)
{
    (void)graph, (void)callback, (void)data;
    return cuStreamBeginCapture_v2(handle, mode);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *result)
{
    WITH_STREAM(stream, handle);
    struct capture *capture = stream->capture;
    if (!capture || !result)
        return capture ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    detach(capture);
    bool is_spoilt = capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *result = is_spoilt ? NULL : (CUgraph)capture->graph;
    if (is_spoilt)
        graph_free(capture->graph);
    free(capture);
    return is_spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/* The legacy stream would wait for a stream that is captured and blocks. Asking spoils nothing (cuda.h). */
static CUresult implied(const struct stream *stream)
{
    return capture_implied(stream) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    WITH_STREAM(stream, handle);
    CHECK(implied(stream));
    *status = stream->capture ? stream->capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, const CUgraphEdgeData **edges,
                                          size_t *count)
{
    WITH_STREAM(stream, handle);
    CHECK(implied(stream));
    struct capture *capture = stream->capture;
    *status = capture ? capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    if (!capture)
        return CUDA_SUCCESS;
    if (id)
        *id = capture->id;
    if (graph)
        *graph = (CUgraph)capture->graph;
    if (dependencies)
        *dependencies = (const CUgraphNode *)&capture->last;
    if (edges)
        *edges = NULL;
    if (count)
        *count = capture->last != NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, size_t *count)
{
    return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, NULL, count);
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id)
{
    return cuStreamGetCaptureInfo_v3(handle, status, id, NULL, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, size_t count,
                                                  unsigned flags)
{
    WITH_STREAM(stream, handle);
    (void)flags;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (count)
        stream->capture->last = object_find(dependencies[count - 1], OBJECT_NODE);
    return CUDA_SUCCESS;
}
