/* Whether a stream is being captured: work of ours in it would become part of the program's graph. */
#ifndef HETERO_SHARED_CAPTURING_H
#define HETERO_SHARED_CAPTURING_H

#include "types.h"

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic unsigned active_captures; /* begun and not over: while there is none, no stream needs to be asked */

/* A capture is about to begin (false: in a stream that is captured already, which the driver will refuse); it is over,
 * or never began; and so are those of a context that ended. `stream`: what it is known by (capture.c). */
bool note_capture(uint64_t capture_key, void *context);
void forget_capture(uint64_t capture_key);
void forget_captures_of(const void *context);

static inline bool capturing(void)
{
    return __builtin_expect(atomic_load_explicit(&active_captures, memory_order_acquire) > 0, 0);
}

bool stream_is_capturing(stream_t stream);

/* The limiter's own calls must not disturb a capture that any thread has begun: relaxed for their duration. */
TYPE(streamCaptureMode) relax_captures(void);
void restore_captures(TYPE(streamCaptureMode) mode);

void capture_after_fork(void);

/* In a child after fork, of what is charged for graphs. */
void graphs_after_fork(void);

#endif
