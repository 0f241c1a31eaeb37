/* Ends of contexts and streams. */
#ifndef HETERO_SHARED_ENDS_H
#define HETERO_SHARED_ENDS_H

#include "borrowed.h"

/* Around a call that may end a context; NULL is none. The first is called before it and reads the card's use. The
 * second is called after it: unless the context is alive, the work in flight in it is forgotten. The third is called
 * after it if the context ended: its memory is given back, but for memory that others have open. */
struct card_use before_context_ends(context_t context);
void context_call_over(context_t context, bool is_alive);
void after_context_ended(context_t context, struct card_use use_before);

/* Of the third, what is no memory: the context's streams, their captures, and frees that wait for them. */
void streams_ended(context_t context);

/* Number of streams for which a context takes a block, which it keeps when they are destroyed (measured on an NVIDIA
 * H100, driver 580.159.04, 2026-11-23). */
#define STREAMS_PER_BLOCK 4

/* A stream was made on a device of that number in the grant; a negative one is none of it (device.h). Whether the
 * context may take a block for one more. */
void stream_made(int device);
bool stream_takes_more(int device);

#endif
