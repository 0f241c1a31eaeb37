/* The memory pools of this process, charged by what the driver says that they reserve.
 *
 * A pool takes chunks of the device and keeps them after a free: until it is trimmed, and until the stream in whose
 * order the free lies has come there. The driver's `reserved` tells both, so it is what is charged: after each call
 * that can change it. Before such a call, what it may add is charged.
 */
#ifndef HETERO_SHARED_POOLS_H
#define HETERO_SHARED_POOLS_H

#include "types.h"

#include <stdbool.h>

struct pool;

/* What a pool takes of the device at a time: measured on an NVIDIA H100, driver 580.159.04. */
#define POOL_CHUNK (UINT64_C(32) << 20)

/* Stands for the pool that a device has for its graphs, for which the driver has no name. */
#define POOL_OF_GRAPHS(device) ((TYPE(memoryPool))(uintptr_t)((device) + 1))

/* Whose memory a pool gives out, by which the device takes it: chunks of its own, or batches of managed memory. */
enum pool_memory { POOL_OF_DEVICE, POOL_OF_MANAGED };

/* The pool of this name, which allocates on `device`; NULL: it cannot be counted, as there is no memory to remember it
 * with, or the driver (before 11.3) does not say what it reserves. It is pinned: it and the driver's stay until it is
 * unpinned, even where the program destroys it. pool_grown and a pool_grow that fails unpin, and what says so below.
 */
struct pool *pool_remember(TYPE(memoryPool) handle, int device, enum pool_memory memory);

/* Whether there is one, which is not pinned. */
bool pool_countable(TYPE(memoryPool) handle, int device, enum pool_memory memory);

/* The pinned pool that a device allocates from when none is named; its name. */
struct pool *pool_current(int device);
TYPE(memoryPool) pool_name(const struct pool *pool);

/* Whether any pool was ever allocated from; the device of a pool that is known by name. */
bool pools_known(void);
bool pool_known(TYPE(memoryPool) handle, int *device);

/* One call that may make a pool grow: charge what it may add for `bytes` in the order of `stream`, of which `prepaid`
 * are charged already; then make it; then keep what it added. Out of memory: nothing is charged but what was prepaid,
 * and no call may be made. Growing is one call at a time on each device. */
struct growth {
    struct pool *pool;
    uint64_t charged_bytes;
};
result_t pool_grow(struct growth *growth, struct pool *pool, uint64_t bytes, uint64_t prepaid_bytes, stream_t stream);

/* False: the pool took more than was charged, and more than the limit leaves. It is charged all the same. */
bool pool_grown(struct growth *growth);

/* Free what is of a pool, in the order of a stream: of an API whose pools are charged by what they gave
 * (pools_allocation_charged.c). */
result_t pool_release(result_t (*real)(pointer_t, stream_t), pointer_t pointer, stream_t stream);

/* The same by a call that waits for the device. */
result_t pool_release_at_once(result_t (*real)(pointer_t), pointer_t pointer);

/* Whether this was freed already, and a pool keeps it. */
bool pool_keeps(pointer_t pointer);

/* Something of a device's pools was freed, or will be used, in the order of this stream; a stream that ends. */
void pools_used(int device, stream_t stream);
void pools_stream_ended(stream_t stream);

/* Give back what the pools of a device do not reserve any more: as they are, or after asking them to keep nothing. */
void pools_settle(int device);
void pools_trim(int device);

/* What the pools of a device are charged for and do not reserve now: they gave it back by themselves, or others may
 * have it. Managed memory is no part of it. `exported`: of those that were exported alone. */
uint64_t pools_idle_bytes(int device, bool only_exported);

/* A context ended: pools may have ended with it. */
void pools_context_ended(context_t context);

/* Whether more may come back when a stream that freed something gets there. */
bool pools_pending(int device);

/* The program destroys a pool. It goes when what it holds does. Unpins it. */
void pool_destroy(struct pool *pool);

/* A descriptor of the pool was made: others may have what it holds when it lets go of that. Unpins
 * it. */
void pool_exported(struct pool *pool);

/* What a pool of this many bytes reserves at most. */
uint64_t pool_chunk_bytes(uint64_t bytes);

void pools_after_fork(void);

#endif
