/* The pools, their counts, and what they still keep (pools.h). */
#include "pools.h"

#include "capturing.h"
#include "counted.h"
#include "device.h"
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>

struct pool {
    CUmemoryPool handle; /* POOL_OF_GRAPHS, or NULL: destroyed, and here until the last of its memory is freed */
    int device;
    struct pool *next;
    uint64_t live; /* bytes that the program holds; charged */
    uint64_t idle; /* bytes that it freed and the pool may keep; charged as well */
};

/* All pools that memory was taken of, and their counts. Held while pools are asked what they hold, so that none is
 * destroyed meanwhile; never while the ledger is, nor around a call that waits. */
static struct pool *pools;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static atomic_bool any; /* set with the first pool, never cleared */

bool pools_known(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

void pools_after_fork(void)
{
    counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL; /* nothing of the parent's is the child's */
}

static struct pool *known(CUmemoryPool handle)
{
    struct pool *pool = pools;
    while (pool != NULL && pool->handle != handle)
        pool = pool->next;
    return pool;
}

struct pool *pool_remember(CUmemoryPool handle, int device)
{
    pthread_mutex_lock(&counting);
    struct pool *pool = known(handle);
    if (pool == NULL && (pool = malloc(sizeof *pool)) != NULL) {
        *pool = (struct pool){.handle = handle, .device = device, .next = pools};
        pools = pool;
        atomic_store_explicit(&any, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&counting);
    return pool;
}

int pool_device(const struct pool *pool)
{
    return pool->device;
}

bool pool_known(CUmemoryPool handle, int *device)
{
    pthread_mutex_lock(&counting);
    struct pool *pool = known(handle);
    if (pool != NULL)
        *device = pool->device;
    pthread_mutex_unlock(&counting);
    return pool != NULL;
}

static void trim(const struct pool *pool)
{
    if (pool->handle == POOL_OF_GRAPHS(pool->device))
        REAL(cuDeviceGraphMemTrim)(ordinal_of(pool->device));
    else
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
}

static uint64_t reserved_of(const struct pool *pool)
{
    uint64_t bytes;
    CUresult answer;
    if (pool->handle == POOL_OF_GRAPHS(pool->device))
        answer = REAL(cuDeviceGetGraphMemAttribute)(ordinal_of(pool->device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                    &bytes);
    else
        answer = REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    return answer == CUDA_SUCCESS ? bytes : 0; /* drivers before 11.3 do not say */
}

/* Give back what the pools of `device` do not keep any more, after asking them to keep nothing if `trimmed`; returns
 * what they still keep. What a pool reserves beyond what the program holds was freed before, or will be when its stream
 * gets there. */
static uint64_t settle_idle(int device, bool trimmed)
{
    uint64_t back = 0, idle = 0;
    pthread_mutex_lock(&counting);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device != device || pool->idle == 0)
            continue;
        if (trimmed)
            trim(pool);
        uint64_t reserved = reserved_of(pool), kept = reserved > pool->live ? reserved - pool->live : 0;
        if (pool->idle > kept) {
            back += pool->idle - kept;
            pool->idle = kept;
        }
        idle += pool->idle;
    }
    pthread_mutex_unlock(&counting);
    refund(device, back);
    return idle;
}

void pools_settle(int device)
{
    settle_idle(device, false);
}

void pools_empty(int device)
{
    settle_idle(device, true);
}

void pools_trim(int device)
{
    /* What was freed in the order of a stream that is not there yet is worth waiting for, where that breaks nothing. */
    if (settle_idle(device, true) > 0 && !capturing() && REAL(cuCtxSynchronize)() == CUDA_SUCCESS)
        settle_idle(device, true);
}

uint64_t pool_take_idle(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    uint64_t taken = pool->idle < bytes ? pool->idle : bytes;
    pool->idle -= taken;
    pool->live += taken;
    pthread_mutex_unlock(&counting);
    return taken;
}

void pool_count_live(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    pool->live += bytes;
    pthread_mutex_unlock(&counting);
}

void pool_count_idle(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    pool->live -= bytes;
    pool->idle += bytes;
    pthread_mutex_unlock(&counting);
}

/* The last of a destroyed pool's memory frees the struct; its memory goes back to the card as it is freed. */
void pool_count_freed(struct pool *pool, uint64_t bytes)
{
    int device = pool->device;
    pthread_mutex_lock(&counting);
    bool gone = pool->handle == NULL;
    pool->live -= bytes;
    pool->idle += gone ? 0 : bytes;
    bool last = gone && pool->live == 0;
    pthread_mutex_unlock(&counting);
    if (gone)
        refund(device, bytes);
    if (last)
        free(pool);
}

CUresult settle_freed(CUresult answer, const struct entry *entry)
{
    struct entry previous;
    if (answer == CUDA_SUCCESS)
        pool_count_freed(entry->link, entry->bytes);
    else
        table_put(entry, &previous);
    return answer;
}

struct pool *pool_forget(CUmemoryPool handle)
{
    struct pool **at = &pools;
    pthread_mutex_lock(&counting);
    while (*at != NULL && (*at)->handle != handle)
        at = &(*at)->next;
    struct pool *pool = *at;
    if (pool != NULL) {
        *at = pool->next;
        pool->handle = NULL;
    }
    pthread_mutex_unlock(&counting);
    return pool;
}

void pool_destroyed(struct pool *pool)
{
    pthread_mutex_lock(&counting);
    uint64_t back = pool->idle;
    int device = pool->device;
    bool last = pool->live == 0;
    pool->idle = 0;
    pthread_mutex_unlock(&counting);
    refund(device, back);
    if (last)
        free(pool);
}

void pool_stands(struct pool *pool, CUmemoryPool handle)
{
    pthread_mutex_lock(&counting);
    pool->handle = handle;
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&counting);
}
