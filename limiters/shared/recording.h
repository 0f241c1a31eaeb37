/* Launches into captured streams, which pass no gate, and calls that end captures. */
#ifndef HETERO_SHARED_RECORDING_H
#define HETERO_SHARED_RECORDING_H

#include "capturing.h"

/* Whether a launch into the stream is captured, and so needs no gate. If so, no capture ends until recording_ends() was
 * called; otherwise the launch could become work that is not charged. If a wait was abandoned meanwhile, the second
 * returns whether the stream still is captured. `wait_count_before` is passed from the first to the second. */
bool recording_begins(stream_t stream, unsigned *wait_count_before);
bool recording_ends(stream_t stream, unsigned wait_count_before);

/* Around a call that ends a capture. */
void capture_end_begins(void);
void capture_end_over(void);

/* In a child after fork, which has no other threads. */
void recording_after_fork(void);

#endif
