/* Captures, which nothing of ours may enter: what is recorded meanwhile would become part of the program's graph. */
#include "bodies.h"
#include "capturing.h"
#include "device.h"
#include "driver.h"
#include "launch.h"

/* What was launched before a capture must have its fence before it: afterwards the fence would become part of the
 * graph, and the legacy stream takes none while another that blocks is captured. */
static void before_capture(CUstream stream)
{
    struct governor *governor = governor_known(device_of_stream(stream));
    if (governor != NULL)
        gate_before_capture(&governor->gate);
}

/* What a capture is known by: its stream, or the thread whose default stream it is. */
static uint64_t capture_key(CUstream stream)
{
    struct stream_key key = stream_key(stream);
    return (uintptr_t)(key.thread != NULL ? key.thread : key.stream);
}

static CUcontext context_of(CUstream stream)
{
    CUcontext context;
    return REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS ? context : context_current();
}

/* Counted first: a fence that was being set meanwhile is done when before_capture() has the lock, and the next asks. */
#define BEGIN_CAPTURE(call)                                                                                            \
    do {                                                                                                               \
        CUstream meant = stream == NULL ? none : stream;                                                               \
        CUcontext context = context_of(meant);                                                                         \
        bool counted = capture_counted(capture_key(meant), context);                                                   \
        before_capture(meant);                                                                                         \
        CUresult answer = call;                                                                                        \
        if (answer != CUDA_SUCCESS && counted)                                                                         \
            capture_over(capture_key(meant));                                                                          \
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

CUresult begin_recapture(CUresult (*real)(CUstream, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void *),
                         CUstream none, CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                         CUgraphRecaptureCallback callback, void *data)
{
    BEGIN_CAPTURE(real(stream, mode, graph, callback, data));
}

CUresult begin_capture_to_cig(CUresult (*real)(CUstream, CUstreamCigCaptureParams *), CUstream none, CUstream stream,
                              CUstreamCigCaptureParams *params)
{
    BEGIN_CAPTURE(real(stream, params));
}

/* A refused end (another thread's capture, an unjoined stream) may leave the capture going. */
#define END_CAPTURE(call)                                                                                              \
    do {                                                                                                               \
        CUstream meant = stream == NULL ? none : stream;                                                               \
        CUresult answer = call;                                                                                        \
        if (!stream_capturing(meant))                                                                                  \
            capture_over(capture_key(meant));                                                                          \
        return answer;                                                                                                 \
    } while (0)

CUresult end_capture(CUresult (*real)(CUstream, CUgraph *), CUstream none, CUstream stream, CUgraph *graph)
{
    END_CAPTURE(real(stream, graph));
}

CUresult end_capture_to_cig(CUresult (*real)(CUstream), CUstream none, CUstream stream)
{
    END_CAPTURE(real(stream));
}

CUresult wait_event(CUresult (*real)(CUstream, CUevent, unsigned), CUstream none, CUstream stream, CUevent event,
                    unsigned flags)
{
    /* Waiting for a captured event makes the stream join the capture. */
    if (capturing())
        before_capture(stream == NULL ? none : stream);
    return real(stream, event, flags);
}
