/* Captures that only CUDA has: into an existing graph, and for graphics. */
#include "../core/fault.h"
#include "../shared/bodies.h"
#include "../shared/capture.h"
#include "../shared/recording.h"

CUresult begin_recapture(CUresult (*real)(CUstream, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void *),
                         CUstream null_stream, CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                         CUgraphRecaptureCallback callback, void *data)
{
    if (FAULT(recaptures_unnoticed))
        return real(stream, mode, graph, callback, data);
    BEGIN_CAPTURE(real(stream, mode, graph, callback, data));
}

CUresult begin_capture_to_cig(CUresult (*real)(CUstream, CUstreamCigCaptureParams *), CUstream null_stream,
                              CUstream stream, CUstreamCigCaptureParams *params)
{
    BEGIN_CAPTURE(real(stream, params));
}

CUresult end_capture_to_cig(CUresult (*real)(CUstream), CUstream null_stream, CUstream stream)
{
    capture_end_begins();
    return capture_ended(real(stream), stream == NULL ? null_stream : stream);
}
