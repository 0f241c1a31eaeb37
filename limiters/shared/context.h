/* Contexts and streams, which end with what lived in them. */
#ifndef HETERO_SHARED_CONTEXT_H
#define HETERO_SHARED_CONTEXT_H

#include "types.h"

/* Streams take memory by the handful: what one takes is charged, and goes back with it if it is beyond the limit. */
result_t settle_stream(stream_t stream, int device);

void context_after_fork(void);
void limits_after_fork(void);

#endif
