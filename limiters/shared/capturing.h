/* Whether a stream is being captured. The limiter's work in it would become part of the program's graph. */
#ifndef HETERO_SHARED_CAPTURING_H
#define HETERO_SHARED_CAPTURING_H

#include "types.h"

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic unsigned
    active_capture_count; /* how many were begun and not ended; with none, no driver call is needed */

/* Count a capture that is about to begin. False: the stream is captured already, and the driver will refuse. Forget one
 * that ended or never began; and all of a context that ended. `capture_key`: of the stream (capture.c). */
bool note_capture(uint64_t capture_key, void *context);
void forget_capture(uint64_t capture_key);
void forget_captures_of(const void *context);

static inline bool capturing(void)
{
    return __builtin_expect(atomic_load_explicit(&active_capture_count, memory_order_acquire) > 0, 0);
}

bool stream_is_capturing(stream_t stream);

/* Around the limiter's own calls: the relaxed mode keeps them from breaking another thread's capture. */
TYPE(streamCaptureMode) relax_captures(void);
void restore_captures(TYPE(streamCaptureMode) capture_mode);

void capture_after_fork(void);

/* In a child after fork: forget the charges for graphs. */
void graphs_after_fork(void);

#endif
