/* Memory that was freed and is still on the device: kept by pools or blocks, or freed in the order of a stream. */
#ifndef HETERO_SHARED_RECLAIM_H
#define HETERO_SHARED_RECLAIM_H

#include "types.h"

#include "../core/table.h"

/* Reclaim freed memory until `bytes` fit, and wait for streams for a second at most. A stream may never pass a free. */
void reclaim_freed(int device, uint64_t bytes);

/* An entry's memory was freed in the order of a stream: give its charge back when the stream has passed. */
void free_in_order(const struct entry *entry, stream_t stream);

/* Give back frees that streams have passed; and frees in a context that ended. */
void reclaim_settle(void);
void reclaim_context_ended(context_t context);

/* A stream is to be destroyed. If it has passed all its work it is waited for: the card keeps memory that was freed in
 * its order until a thread waits for it, which is impossible afterwards. */
void reclaim_stream_ended(stream_t stream);

/* The bytes that are charged for memory that was freed in the order of streams. */
uint64_t freed_in_order_bytes(int device);

void reclaim_after_fork(void);

#endif
