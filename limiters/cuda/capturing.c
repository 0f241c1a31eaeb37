/* Counts captures, and asks the driver about a stream while there is one (capturing.h). */
#include "capturing.h"

#include "driver.h"

_Atomic unsigned captures;

void capture_after_fork(void)
{
    atomic_store(&captures, 0);
}

bool stream_capturing(CUstream stream)
{
    if (!capturing())
        return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* An error means a capture that forbids the work: the driver will say so itself. */
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}
