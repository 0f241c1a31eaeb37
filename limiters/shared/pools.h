/* The memory pools of this process, charged by the bytes that the driver has reserved for them.
 *
 * A pool takes chunks of the device. It keeps them after a free, until the stream of the free has passed it and the
 * pool is trimmed. The driver's attribute of reserved bytes has both, so it is charged: it is read after each call that
 * can change it. Before such a call, the growth that it may cause is charged.
 *
 * pools_allocation_charged.c has the same interface for APIs whose pools are charged by their allocations instead.
 */
#ifndef HETERO_SHARED_POOLS_H
#define HETERO_SHARED_POOLS_H

#include "types.h"

#include <stdbool.h>

struct pool;

/* Unit by which a pool grows: measured on an NVIDIA H100, driver 580.159.04. */
#define POOL_CHUNK (UINT64_C(32) << 20)

/* Stands for a device's pool of graphs, for which the driver has no handle. */
#define POOL_OF_GRAPHS(device) ((TYPE(memoryPool))(uintptr_t)((device) + 1))

/* The memory of a pool's allocations: the device's, in chunks, or managed memory, in batches. */
enum pool_memory { POOL_OF_DEVICE, POOL_OF_MANAGED };

/* The pool with this handle, which allocates on `device`, pinned. NULL: it cannot be charged, because there is no
 * memory for its record, or the driver (before 11.3) does not report what it reserves. A pinned record and the driver's
 * pool stay until it is unpinned, even if the program destroys the pool. pool_grown(), a failed pool_grow() and
 * functions below that say so unpin it.
 */
struct pool *pool_remember(TYPE(memoryPool) handle, int device, enum pool_memory memory);

/* Whether the pool can be charged; it is not left pinned. */
bool pool_countable(TYPE(memoryPool) handle, int device, enum pool_memory memory);

/* The device's current pool, pinned, from which calls without a pool allocate; a pool's handle. */
struct pool *pool_current(int device);
TYPE(memoryPool) pool_name(const struct pool *pool);

/* Whether any pool was ever used. Whether a pool is known, and its device. */
bool pools_known(void);
bool pool_known(TYPE(memoryPool) handle, int *device);

/* One call that may make a pool grow by an allocation of `bytes` in the order of `stream`, of which `prepaid_bytes` are
 * charged already. pool_grow() charges the possible growth before the call, and pool_grown() corrects that after it.
 * Out of memory: only the prepaid bytes are charged, and the call must not be made. On each device one such call is
 * made at a time. */
struct growth {
    struct pool *pool;      /* NULL: none grows */
    uint64_t charged_bytes; /* before the call */
};
result_t pool_grow(struct growth *growth, struct pool *pool, uint64_t bytes, uint64_t prepaid_bytes, stream_t stream);

/* False: the pool grew by more than was charged, and beyond the limit. All of it is charged. */
bool pool_grown(struct growth *growth);

/* Free a pool's allocation in the order of a stream, for APIs whose pools are charged by their allocations
 * (pools_allocation_charged.c). */
result_t pool_release(result_t (*real)(pointer_t, stream_t), pointer_t pointer, stream_t stream);

/* The same by a call that waits for the device. */
result_t pool_release_at_once(result_t (*real)(pointer_t), pointer_t pointer);

/* Whether an allocation was freed already, and a pool keeps it. */
bool pool_keeps(pointer_t pointer);

/* Memory of a device's pools was freed, or will be used, in the order of this stream. A stream is about to end. */
void pools_used(int device, stream_t stream);
void pools_stream_ended(stream_t stream);

/* Give back charges for bytes that a device's pools do not reserve any more; the second trims the pools first. */
void pools_settle(int device);
void pools_trim(int device);

/* The bytes that a device's pools are charged for and do not reserve now: the driver trimmed them, or other processes
 * may have them open. Managed memory is left out. `only_exported`: only of exported pools. */
uint64_t pools_idle_bytes(int device, bool only_exported);

/* A context ended, and pools may have ended with it. */
void pools_context_ended(context_t context);

/* Whether streams have frees ahead that may return more memory. */
bool pools_pending(int device);

/* The program destroys a pool. The driver's pool is destroyed with its last allocation. Unpins it. */
void pool_destroy(struct pool *pool);

/* The pool was exported: other processes may have its memory open when it is freed here. Unpins it. */
void pool_exported(struct pool *pool);

/* The bytes of chunks that a pool reserves for allocations of so many bytes at most. */
uint64_t pool_chunk_bytes(uint64_t bytes);

void pools_after_fork(void);

#endif
