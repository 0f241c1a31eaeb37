/* Captures, which nothing of ours may enter: what is recorded meanwhile would become part of the program's graph. */
#include "bodies.h"
#include "capturing.h"
#include "device.h"
#include "launch.h"

/* What was launched before a capture must have its fence before it: afterwards the fence would become part of the
 * graph. */
static void before_capture(CUstream stream)
{
    struct governor *governor = governor_known(device_of_stream(stream));
    struct stream_key key = stream_key(stream);
    if (governor != NULL)
        gate_before_capture(&governor->gate, &key);
}

/* Counted first: a fence that was being set meanwhile is done when before_capture() has the lock, and the next asks. */
#define BEGIN_CAPTURE(call)                                                                                            \
    do {                                                                                                               \
        atomic_fetch_add(&captures, 1);                                                                                \
        before_capture(stream == NULL ? none : stream);                                                                \
        CUresult answer = call;                                                                                        \
        if (answer != CUDA_SUCCESS)                                                                                    \
            atomic_fetch_sub(&captures, 1);                                                                            \
        return answer;                                                                                                 \
    } while (0)

CUresult begin_capture(CUresult (*real)(CUstream), CUstream none, CUstream stream)
{
    BEGIN_CAPTURE(real(stream));
}

CUresult begin_capture_mode(CUresult (*real)(CUstream, CUstreamCaptureMode), CUstream none, CUstream stream,
                            CUstreamCaptureMode mode)
{
    BEGIN_CAPTURE(real(stream, mode));
}

CUresult begin_capture_to_graph(CUresult (*real)(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                                                 size_t, CUstreamCaptureMode),
                                CUstream none, CUstream stream, CUgraph graph, const CUgraphNode *after,
                                const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    BEGIN_CAPTURE(real(stream, graph, after, edges, count, mode));
}

CUresult end_capture(CUresult (*real)(CUstream, CUgraph *), CUstream none, CUstream stream, CUgraph *graph)
{
    CUstream meant = stream == NULL ? none : stream;
    bool was = stream_capturing(meant);
    CUresult answer = real(stream, graph);
    /* A refused end (another thread's capture, an unjoined stream) may leave the capture going. */
    if (was && !stream_capturing(meant))
        atomic_fetch_sub(&captures, 1);
    return answer;
}

CUresult wait_event(CUresult (*real)(CUstream, CUevent, unsigned), CUstream none, CUstream stream, CUevent event,
                    unsigned flags)
{
    /* Waiting for a captured event makes the stream join the capture. */
    if (capturing())
        before_capture(stream == NULL ? none : stream);
    return real(stream, event, flags);
}
