/* The calls that begin and end captures. The limiter's own work must not enter a capture: it would become part of the
 * program's graph. */
#include "capture.h"

#include "bodies.h"
#include "device.h"
#include "driver.h"
#include "recording.h"

/* Set the fence behind earlier launches before the capture begins. A later fence would become part of the graph, and
 * the legacy stream takes no event while a blocking stream is captured. */
static void before_capture(stream_t stream)
{
    struct governor *governor = governor_known(device_of_stream(stream));
    if (governor != NULL)
        gate_before_capture(&governor->gate);
}

/* The key of a capture's entry: its stream, or the thread whose per-thread default stream it is. */
static uint64_t capture_key(stream_t stream)
{
    struct stream_key key = stream_key(stream);
    return (uintptr_t)(key.thread != NULL ? key.thread : key.stream);
}

/* The capture is counted first. A fence that is being set meanwhile is set when before_capture() has the lock, and
 * later fences check for captures. */
bool capture_begins(stream_t stream)
{
    bool is_counted = note_capture(capture_key(stream), context_of_stream(stream));
    before_capture(stream);
    return is_counted;
}

result_t capture_began(result_t answer, stream_t stream, bool is_counted)
{
    if (answer != RESULT_OK && is_counted)
        forget_capture(capture_key(stream));
    return answer;
}

result_t begin_capture(result_t (*real)(stream_t), stream_t null_stream, stream_t stream)
{
    BEGIN_CAPTURE(real(stream));
}

result_t begin_capture_mode(result_t (*real)(stream_t, TYPE(streamCaptureMode)), stream_t null_stream, stream_t stream,
                            TYPE(streamCaptureMode) mode)
{
    BEGIN_CAPTURE(real(stream, mode));
}

result_t begin_capture_to_graph(result_t (*real)(stream_t, TYPE(graph), const TYPE(graphNode) *,
                                                 const TYPE(graphEdgeData) *, size_t, TYPE(streamCaptureMode)),
                                stream_t null_stream, stream_t stream, TYPE(graph) graph,
                                const TYPE(graphNode) *dependencies, const TYPE(graphEdgeData) *edges,
                                size_t dependency_count, TYPE(streamCaptureMode) mode)
{
    BEGIN_CAPTURE(real(stream, graph, dependencies, edges, dependency_count, mode));
}

/* A refused end (another thread's capture, an unjoined stream) may leave the capture going. */
result_t capture_ended(result_t answer, stream_t stream)
{
    capture_end_over();
    if (!stream_is_capturing(stream))
        forget_capture(capture_key(stream));
    return answer;
}

result_t end_capture(result_t (*real)(stream_t, TYPE(graph) *), stream_t null_stream, stream_t stream,
                     TYPE(graph) *graph)
{
    capture_end_begins();
    return capture_ended(real(stream, graph), stream == NULL ? null_stream : stream);
}

void event_wait_begins(struct wait_ticket *ticket, stream_t stream)
{
    if (capturing())
        before_capture(stream);
    event_wait_enter(ticket, stream);
}

result_t wait_event(result_t (*real)(stream_t, event_t, unsigned), stream_t null_stream, stream_t stream, event_t event,
                    unsigned flags)
{
    struct wait_ticket ticket;
    event_wait_begins(&ticket, stream == NULL ? null_stream : stream);
    result_t answer = real(stream, event, flags);
    wait_leave(&ticket, answer);
    return answer;
}
