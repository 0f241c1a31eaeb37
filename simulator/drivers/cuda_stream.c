/* Streams and events: a device executes a process's work in the order of its submission. */
#include "driver.h"

struct stream *stream_new(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = object_new(OBJECT_STREAM);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    return stream;
}

struct stream *stream_find(CUstream handle)
{
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
        return object_find(handle, OBJECT_STREAM);
    struct context *context = current_context();
    if (!context)
        return NULL;
    return handle == CU_STREAM_PER_THREAD ? context->per_thread : context->legacy;
}

#define WITH_EVENT(name, handle)                                                                                       \
    struct event *name = object_find(handle, OBJECT_EVENT);                                                            \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_HANDLE

/* Data is moved when the call is made. No program can tell this from a later copy, since the stream's order is the
 * order of the calls. */
CUresult perform(struct stream *stream, const struct work *work)
{
    switch (work->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: copy_box(&work->copy); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: fill_box(&work->fill); break;
    case CU_GRAPH_NODE_TYPE_HOST: return host_call(stream, work);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: memory_retire(memory_find(work->free), stream); break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        submit(stream, 0);
        work->event->is_recorded = true;
        work->event->position = stream->last_position;
        work->event->record_ns = engine_now();
        work->event->stream = stream;
        work->event->submitted_ns = stream->submitted_ns;
        return CUDA_SUCCESS;
    default: break;
    }
    submit(stream, work->duration_ns);
    return CUDA_SUCCESS;
}

struct capture *capture_implied(const struct stream *stream)
{
    struct capture *capture = stream == stream->context->legacy ? driver.captures : NULL;
    while (capture && (capture->origin->context != stream->context || capture->origin->flags & CU_STREAM_NON_BLOCKING))
        capture = capture->next;
    return capture;
}

CUresult enqueue(struct stream *stream, const struct work *work)
{
    if (stream->capture) {
        struct capture *capture = stream->capture;
        if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        CUgraphNode last_node = (CUgraphNode)capture->last;
        capture->last = graph_add(capture->graph, work, &last_node, last_node != NULL);
        return CUDA_SUCCESS;
    }
    struct capture *implied = capture_implied(stream);
    if (implied) {
        capture_spoil(implied);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return perform(stream, work);
}

CUresult do_now(struct context *context, const struct work *work)
{
    CHECK(capture_guard());
    CHECK(perform(context->legacy, work));
    wait_for(context->device, context->legacy->last_position);
    return CUDA_SUCCESS;
}

/* The first two streams of a context are charged nothing. Each four more are charged a block, which the context
 * keeps. On an H100 255 streams took 140 MiB, which is about this. */
static bool room_for_stream(struct context *context)
{
    unsigned growth_bytes = context->stream_count < 2 ? 0 : context->stream_count - 1;
    uint64_t bytes = (growth_bytes + 3) / 4 * BLOCK;
    if (bytes <= context->stream_bytes)
        return true;
    if (!engine_charge(context->device->account, bytes - context->stream_bytes))
        return false;
    context->stream_bytes = bytes;
    return true;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority)
{
    LOCKED;
    WITH_CONTEXT(context);
    if (!handle || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (!room_for_stream(context))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->stream_count++;
    *handle = (CUstream)stream_new(context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
    return cuStreamCreateWithPriority(handle, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    LOCKED;
    struct stream *stream = object_find(handle, OBJECT_STREAM);
    if (!stream || stream == stream->context->legacy || stream == stream->context->per_thread)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && stream->capture->origin == stream)
        capture_abandon(stream->capture);
    else if (stream->capture)
        return capture_spoil(stream->capture);
    stream->context->stream_count--;
    departures_alone(stream);
    object_free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream handle)
{
    return cuStreamDestroy_v2(handle);
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    WITH_STREAM(stream, handle);
    if (stream->capture)
        return capture_spoil(stream->capture);
    CHECK(capture_guard());
    return reached(stream->context->device, stream->last_position) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    WITH_STREAM(stream, handle);
    if (stream->capture)
        return capture_spoil(stream->capture);
    CHECK(capture_guard());
    struct device *device = stream->context->device;
    wait_for(device, stream->last_position);
    if (device->account)
        pools_settle(device, FOR_A_STREAM);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags)
{
    WITH_STREAM(stream, handle);
    WITH_EVENT(event, event_handle);
    (void)flags;
    if (event->capture && !stream->capture)
        stream->capture = event->capture; /* joins it */
    else if (event->capture != stream->capture)
        return event->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : capture_spoil(stream->capture);
    else if (!event->capture)
        stream->last_position.condition_number = condition_both(stream->last_position.condition_number,
                                                                event->position.condition_number);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    WITH_STREAM(stream, handle);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    WITH_STREAM(stream, handle);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    WITH_STREAM(stream, handle);
    *id = stream->object.number;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *ordinal)
{
    WITH_STREAM(stream, handle);
    *ordinal = (CUdevice)(stream->context->device - driver.devices);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    WITH_STREAM(stream, handle);
    *context = (CUcontext)stream->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    if (green)
        *green = NULL;
    return cuStreamGetCtx(handle, context);
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn call, void *argument)
{
    WITH_STREAM(stream, handle);
    if (!call)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream,
                   &(struct work){.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.call = call, .argument = argument}});
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *argument, unsigned flags)
{
    WITH_STREAM(stream, handle);
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_spoil(stream->capture);
    return enqueue(stream, &(struct work){.type = CU_GRAPH_NODE_TYPE_HOST,
                                          .host = {.callback = callback, .stream = handle, .argument = argument}});
}

/* Events. */

EXPORT CUresult cuEventCreate(CUevent *handle, unsigned flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    if (!handle || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = object_new(OBJECT_EVENT);
    event->context = context;
    event->flags = flags;
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
    LOCKED;
    WITH_EVENT(event, handle);
    object_free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent handle)
{
    return cuEventDestroy_v2(handle);
}

EXPORT CUresult cuEventRecord(CUevent event_handle, CUstream handle)
{
    WITH_STREAM(stream, handle);
    WITH_EVENT(event, event_handle);
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    event->capture = stream->capture;
    if (stream->capture) /* a fence between the stream's nodes, not a node */
        return stream->capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS
                                                                          : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return enqueue(stream, &(struct work){.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event});
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event_handle, CUstream handle, unsigned flags)
{
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!flags)
        return cuEventRecord(event_handle, handle);
    WITH_STREAM(stream, handle); /* external: inside a capture it becomes a node, and is recorded at each launch */
    WITH_EVENT(event, event_handle);
    return enqueue(stream, &(struct work){.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event});
}

EXPORT CUresult cuEventQuery(CUevent handle)
{
    LOCKED;
    WITH_EVENT(event, handle);
    if (event->capture) {
        capture_spoil(event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    CHECK(capture_guard());
    return !event->is_recorded || reached(event->context->device, event->position) ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent handle)
{
    LOCKED;
    WITH_EVENT(event, handle);
    if (event->capture) {
        capture_spoil(event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    CHECK(capture_guard());
    struct device *device = event->context->device;
    if (event->is_recorded)
        wait_for(device, event->position);
    if (device->account)
        pools_settle(device, FOR_A_STREAM);
    return CUDA_SUCCESS;
}

static uint64_t time_of(const struct event *event)
{
    uint64_t time_ns = engine_when(event->context->device->account, event->position.fence);
    return time_ns > event->record_ns ? time_ns : event->record_ns; /* an idle card stamps it at once */
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start_handle, CUevent end_handle)
{
    LOCKED;
    WITH_EVENT(start, start_handle);
    WITH_EVENT(end, end_handle);
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    if (start->capture || end->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!start->is_recorded || !end->is_recorded || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!reached(start->context->device, start->position) || !reached(end->context->device, end->position))
        return CUDA_ERROR_NOT_READY;
    /* What stands behind a condition was not begun, and runs in a row when that is met. */
    if (start->position.condition_number != 0 && start->position.condition_number == end->position.condition_number &&
        start->stream == end->stream) {
        *ms = (float)((double)(end->submitted_ns - start->submitted_ns) / 1e6);
        return CUDA_SUCCESS;
    }
    *ms = (float)(((double)time_of(end) - (double)time_of(start)) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(ms, start, end);
}

void streams_leave(const struct context *context)
{
    for (struct stream *stream = NULL; (stream = object_next(stream, OBJECT_STREAM));)
        if (stream->context == context)
            object_free(stream);
    for (struct event *event = NULL; (event = object_next(event, OBJECT_EVENT));)
        if (event->context == context)
            object_free(event);
}
