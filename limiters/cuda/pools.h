/* The memory pools that were allocated from, and what each holds for the program and keeps of what it freed.
 *
 * What a pool keeps of freed memory still occupies the device, so it stays charged: the program's next allocations from
 * the pool are made of it, and it is given back when the pool gives it back.
 */
#ifndef HETERO_CUDA_POOLS_H
#define HETERO_CUDA_POOLS_H

#include "abi.h"

#include "../core/table.h"

#include <stdbool.h>

struct pool;

/* Stands for the pool that a device has for its graphs, for which the driver has no name. */
#define POOL_OF_GRAPHS(device) ((CUmemoryPool)(uintptr_t)((device) + 1))

/* Whether any pool was ever allocated from. */
bool pools_known(void);

/* The pool of this name, which allocates on `device`; NULL: no memory to remember it with. */
struct pool *pool_remember(CUmemoryPool handle, int device);

/* The device that a pool allocates on; and the same by name. False: no pool of that name is known. */
int pool_device(const struct pool *pool);
bool pool_known(CUmemoryPool handle, int *device);

/* Give back what the pools of a device do not keep any more; after asking them to keep nothing; and after waiting for
 * what was freed in the order of a stream that has not come there yet, too. */
void pools_settle(int device);
void pools_empty(int device);
void pools_trim(int device);

/* ------------------------- counts of one pool: live bytes are the program's, idle ones were freed; both are charged */

/* Make up to `bytes` idle bytes live again; returns how many. */
uint64_t pool_take_idle(struct pool *pool, uint64_t bytes);

/* So many bytes were charged and are live; or so many that were taken are idle again. */
void pool_count_live(struct pool *pool, uint64_t bytes);
void pool_count_idle(struct pool *pool, uint64_t bytes);

/* The program freed so many bytes. */
void pool_count_freed(struct pool *pool, uint64_t bytes);

/* The driver answered to the freeing of what `entry` was taken out of the table for. */
CUresult settle_freed(CUresult answer, const struct entry *entry);

/* Forget a pool that is about to be destroyed, before the driver can hand its name out again; NULL: it was not known.
 * Then what the driver said: it is destroyed, or it stands as before. */
struct pool *pool_forget(CUmemoryPool handle);
void pool_destroyed(struct pool *pool);
void pool_stands(struct pool *pool, CUmemoryPool handle);

void pools_after_fork(void);

#endif
