/* What the time sharing needs of the CUDA driver (../timeshare/engine.h). */
#ifndef HETERO_CUDA_ENGINE_H
#define HETERO_CUDA_ENGINE_H

#include "abi.h"

#include "../timeshare/engine.h"

extern const struct engine cuda_engine;

/* The limiter's own calls must not disturb a capture that any thread has begun: relaxed for their duration. */
CUstreamCaptureMode relax_captures(void);
void restore_captures(CUstreamCaptureMode mode);

#endif
