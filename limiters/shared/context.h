/* Contexts and streams. */
#ifndef HETERO_SHARED_CONTEXT_H
#define HETERO_SHARED_CONTEXT_H

#include "types.h"

/* A stream was made: charge the memory that its context took for it. If that exceeds the limit, destroy the stream and
 * return out of memory. */
result_t settle_stream(stream_t stream, int device);

void context_after_fork(void);
void limits_after_fork(void);

#endif
