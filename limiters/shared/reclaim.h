/* Memory that was freed and is not back yet: in pools, and behind streams. */
#ifndef HETERO_SHARED_RECLAIM_H
#define HETERO_SHARED_RECLAIM_H

#include "types.h"

#include "../core/table.h"

/* Get back what was freed until `bytes` fit, waiting for streams for a second at most. A stream may never come there:
 * the driver would answer then, and so do we. */
void reclaim_freed(int device, uint64_t bytes);

/* What an entry was charged is given back when the stream has come here. */
void free_in_order(const struct entry *entry, stream_t stream);

/* Give back what streams have come past; what was to be freed in a context that ended. */
void reclaim_settle(void);
void reclaim_context_ended(context_t context);

/* A stream that is to be destroyed is waited for where it has passed all: afterwards nobody can, and a card keeps what
 * was freed in its order until somebody does. */
void reclaim_stream_ended(stream_t stream);

/* What is charged for memory that was freed in the order of streams. */
uint64_t freed_in_order_bytes(int device);

void reclaim_after_fork(void);

#endif
