/* Launches into streams that are captured, which need no gate, and calls that end captures. */
#ifndef HETERO_SHARED_RECORDING_H
#define HETERO_SHARED_RECORDING_H

#include "capturing.h"

/* Whether a launch into the stream is captured, and so needs no gate. If so, no capture ends before the launch was made
 * and said so: else it could become work that nobody charges. Where they did not wait for each other to the end,
 * whoever made the launch is told that the capture may have been over. `seen`: what the first tells the second. */
bool recording_begins(stream_t stream, unsigned *abandoned_waits);
bool recording_ends(stream_t stream, unsigned abandoned_waits);

/* Around a call that ends a capture. */
void capture_end_begins(void);
void capture_end_over(void);

/* In a forked child, whose parent's other threads are in none. */
void recording_after_fork(void);

#endif
