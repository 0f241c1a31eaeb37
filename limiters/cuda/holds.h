/* Stalls streams for the time sharing (../timeshare/engine.h). */
#ifndef HETERO_CUDA_HOLDS_H
#define HETERO_CUDA_HOLDS_H

#include <stdbool.h>
#include <stdint.h>

void *make_hold(void *context);
void drop_hold(void *hold);
bool hold_stream(void *hold, void *stream, bool stalls);
void stamp_stream(void *hold, void *stream);
void release_stream(void *hold);
bool stream_held_ns(void *hold, uint64_t *held_ns);

#define ENGINE_HOLDS                                                                                                   \
    .make_hold = make_hold, .drop_hold = drop_hold, .hold = hold_stream, .stamp = stamp_stream,                        \
    .release = release_stream, .held_ns = stream_held_ns,

#endif
