/* What goes with a context. */
#ifndef HETERO_SHARED_ENDS_H
#define HETERO_SHARED_ENDS_H

#include "borrowed.h"

/* A call begins that may end a context. It is over, and what was in flight in it is forgotten, unless it lives. It
 * ended: what lived in it is given back, but for what others have, too; `before` is what the first answered. NULL is
 * none. */
struct card_use before_context_ends(context_t context);
void context_call_over(context_t context, bool is_alive);
void after_context_ended(context_t context, struct card_use use_before);

/* The part of the latter that is no memory: the streams that lived in it, their captures, and what waits for them. */
void streams_ended(context_t context);

/* A context takes a block for so many streams, and keeps it when they are destroyed (an NVIDIA H100, driver
 * 580.159.04, 2026-11-23). */
#define STREAMS_PER_BLOCK 4

/* A stream was made on a device of the grant. Whether one more may have its context take a block. */
void stream_made(int device);
bool stream_takes_more(int device);

#endif
