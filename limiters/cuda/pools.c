/* The pools, what is charged for each, and the streams that they wait for (pools.h). */
#include "pools.h"

#include "capturing.h"
#include "charge.h"
#include "cuda_engine.h"
#include "device.h"
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>

struct pool {
    CUmemoryPool handle;
    int device;
    bool over;        /* the program destroyed it */
    bool gone;        /* the driver does not know it any more: its name may become another's */
    uint64_t charged; /* bytes: what it reserved when it was last asked */
    struct pool *next;
};

/* Guards the list, what is charged for each pool, and the streams. Held while pools are asked what they hold, so that
 * none is destroyed meanwhile; never while the ledger is, nor around a call that waits. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static atomic_bool any; /* set with the first pool, never cleared */

/* Per device: held while a pool grows, from the charge to the answer, so that what it added is told apart. */
static pthread_mutex_t growing[HETERO_MAX_DEVICES] = {[0 ... HETERO_MAX_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};

/* Per device: the streams in whose order its pools' memory was freed, and which may not have come there yet. */
static struct {
    CUstream *streams;
    size_t count, room;
    bool lost; /* one of them could not be remembered, or ended */
} behind[HETERO_MAX_DEVICES];

bool pools_known(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

void pools_after_fork(void)
{
    counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL; /* nothing of the parent's is the child's */
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        growing[device] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        behind[device].streams = NULL;
        behind[device].count = behind[device].room = 0;
        behind[device].lost = false;
    }
}

uint64_t pool_chunks(uint64_t bytes)
{
    return bytes > UINT64_MAX - POOL_CHUNK ? UINT64_MAX : (bytes + POOL_CHUNK - 1) / POOL_CHUNK * POOL_CHUNK;
}

/* ------------------------------------------------------------------------------------------- what the driver says */

static bool of_graphs(const struct pool *pool)
{
    return pool->handle == POOL_OF_GRAPHS(pool->device);
}

static bool reserved_of(const struct pool *pool, uint64_t *bytes)
{
    if (of_graphs(pool))
        return REAL(cuDeviceGetGraphMemAttribute)(ordinal_of(pool->device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                  bytes) == CUDA_SUCCESS;
    return REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

static uint64_t used_of(const struct pool *pool)
{
    uint64_t bytes = 0;
    if (of_graphs(pool))
        REAL(cuDeviceGetGraphMemAttribute)(ordinal_of(pool->device), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes);
    else
        REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes);
    return bytes;
}

static void trim(const struct pool *pool)
{
    if (of_graphs(pool))
        REAL(cuDeviceGraphMemTrim)(ordinal_of(pool->device));
    else
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
}

/* ------------------------------------------------------------------------------------------------------- the list */

static struct pool *known(CUmemoryPool handle)
{
    struct pool *pool = pools;
    while (pool != NULL && (pool->handle != handle || pool->over || pool->gone))
        pool = pool->next;
    return pool;
}

/* With `counting` held: a pool of this name on another device ended, and its name is another's now. What was charged.
 */
static uint64_t forget(struct pool *pool)
{
    uint64_t back = pool->charged;
    pool->gone = true;
    pool->charged = 0;
    return back;
}

struct pool *pool_remember(CUmemoryPool handle, int device)
{
    struct pool asked = {.handle = handle, .device = device};
    uint64_t reserved, back = 0;
    int ended = device;
    pthread_mutex_lock(&counting);
    struct pool *pool = known(handle);
    if (pool != NULL && pool->device != device) {
        ended = pool->device;
        back = forget(pool);
        pool = NULL;
    }
    if (pool == NULL && reserved_of(&asked, &reserved) && (pool = malloc(sizeof *pool)) != NULL) {
        *pool = (struct pool){.handle = handle, .device = device, .next = pools};
        pools = pool;
        atomic_store_explicit(&any, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&counting);
    refund(ended, back);
    return pool;
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

/* With `counting` held: forget the pools that are gone, and those destroyed that hold nothing any more. */
static void bury(void)
{
    for (struct pool **at = &pools; *at != NULL;) {
        struct pool *pool = *at;
        if ((!pool->over && !pool->gone) || pool->charged > 0) {
            at = &pool->next;
            continue;
        }
        *at = pool->next;
        if (!pool->gone)
            REAL(cuMemPoolDestroy)(pool->handle);
        free(pool);
    }
}

/* With `counting` held: what a pool does not reserve any more. */
static uint64_t settle_pool(struct pool *pool, bool trimmed)
{
    uint64_t reserved, back = 0;
    if (trimmed || pool->over)
        trim(pool);
    pool->gone = pool->gone || !reserved_of(pool, &reserved);
    if (pool->gone)
        reserved = 0; /* it went with the last context, or with what kept it */
    if (reserved < pool->charged) {
        back = pool->charged - reserved;
        pool->charged = reserved;
    }
    return back;
}

/* Of the pools of a device, trimmed if so wished: give back what they do not reserve any more. */
static void settle_all(int device, bool trimmed)
{
    uint64_t back = 0;
    bool idle = false;
    pthread_mutex_lock(&counting);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device != device || (trimmed && pool->charged == 0))
            continue;
        back += settle_pool(pool, trimmed);
        idle = idle || pool->charged >= used_of(pool) + POOL_CHUNK;
    }
    behind[device].lost = behind[device].lost && (idle || !trimmed);
    bury();
    pthread_mutex_unlock(&counting);
    refund(device, back);
}

void pools_settle(int device)
{
    settle_all(device, false);
}

void pools_context_over(void)
{
    for (int device = 0; pools_known() && device < (int)HETERO_MAX_DEVICES; device++)
        pools_settle(device);
}

void pools_trim(int device)
{
    settle_all(device, true);
}

void pool_destroy(struct pool *pool)
{
    pthread_mutex_lock(&counting);
    pool->over = true;
    pthread_mutex_unlock(&counting);
    settle_all(pool->device, false);
}

/* --------------------------------------------------------------------------------------------- streams to wait for */

void pools_used(int device, CUstream stream)
{
    pthread_mutex_lock(&counting);
    typeof(&behind[0]) of = &behind[device];
    size_t at = 0;
    while (at < of->count && of->streams[at] != stream)
        at++;
    if (at == of->room) {
        CUstream *more = realloc(of->streams, (of->room * 2 + 4) * sizeof *more);
        of->lost = of->lost || more == NULL;
        of->streams = more != NULL ? more : of->streams;
        of->room = more != NULL ? of->room * 2 + 4 : of->room;
    }
    if (at == of->count && at < of->room)
        of->streams[of->count++] = stream;
    pthread_mutex_unlock(&counting);
}

/* Whether all streams but this one have come past what they freed. Asking is no part of anybody's capture. A thread's
 * own default stream is not told apart from another's. */
static bool all_passed(int device, CUstream but)
{
    if (capturing())
        return false;
    CUstreamCaptureMode mode = relax_captures();
    pthread_mutex_lock(&counting);
    typeof(&behind[0]) of = &behind[device];
    for (size_t at = 0; at < of->count;)
        if (of->streams[at] != CU_STREAM_PER_THREAD && REAL(cuStreamQuery)(of->streams[at]) == CUDA_SUCCESS)
            of->streams[at] = of->streams[--of->count];
        else
            at++;
    bool passed = !of->lost &&
                  (of->count == 0 || (of->count == 1 && of->streams[0] == but && but != CU_STREAM_PER_THREAD));
    pthread_mutex_unlock(&counting);
    restore_captures(mode);
    return passed;
}

void pools_stream_over(CUstream stream)
{
    for (int device = 0; pools_known() && device < (int)HETERO_MAX_DEVICES; device++) {
        all_passed(device, NULL); /* forgets it, too, if it has */
        pthread_mutex_lock(&counting);
        typeof(&behind[0]) of = &behind[device];
        for (size_t at = 0; at < of->count; at++)
            if (of->streams[at] == stream) {
                of->streams[at] = of->streams[--of->count];
                of->lost = true;
            }
        pthread_mutex_unlock(&counting);
    }
}

bool pools_pending(int device)
{
    return pools_known() && !capturing() && !all_passed(device, NULL);
}

/* --------------------------------------------------------------------------------------------------------- growing */

/* What the pool may add for `bytes`: all of it, or what it does not have idle where that is certain. */
static bool fits(struct growth *growth, uint64_t bytes, uint64_t prepaid, CUstream stream)
{
    const struct pool *pool = growth->pool;
    uint64_t reserved = 0, used;
    growth->charged = pool_chunks(bytes);
    if (growth->charged <= prepaid || charge_fits(pool->device, growth->charged - prepaid))
        return true;
    if (!all_passed(pool->device, stream) || !reserved_of(pool, &reserved))
        return false;
    used = used_of(pool);
    growth->charged = bytes > UINT64_MAX - used ? UINT64_MAX : used + bytes;
    growth->charged = growth->charged > reserved ? pool_chunks(growth->charged - reserved) : 0;
    return growth->charged <= prepaid || charge_fits(pool->device, growth->charged - prepaid);
}

CUresult pool_grow(struct growth *growth, struct pool *pool, uint64_t bytes, uint64_t prepaid, CUstream stream)
{
    CUresult answer = CUDA_SUCCESS;
    *growth = (struct growth){.pool = pool};
    pthread_mutex_lock(&growing[pool->device]);
    if (!fits(growth, bytes, prepaid, stream)) {
        more_room(pool->device, pool_chunks(bytes));
        fits(growth, bytes, prepaid, stream);
    }
    if (growth->charged > prepaid)
        answer = charge_now(pool->device, growth->charged - prepaid);
    else
        growth->charged = prepaid;
    if (answer != CUDA_SUCCESS)
        pthread_mutex_unlock(&growing[pool->device]);
    return answer;
}

bool pool_grown(struct growth *growth)
{
    struct pool *pool = growth->pool;
    uint64_t reserved = 0, added = 0, back = growth->charged;
    pthread_mutex_lock(&counting);
    if (!reserved_of(pool, &reserved))
        reserved = pool->charged + growth->charged;
    if (reserved >= pool->charged)
        added = reserved - pool->charged;
    else
        back += pool->charged - reserved;
    pool->charged = reserved;
    pthread_mutex_unlock(&counting);
    bool within = true;
    if (added <= back)
        refund(pool->device, back - added);
    else
        within = charge_held(pool->device, added - back);
    pthread_mutex_unlock(&growing[pool->device]);
    return within;
}
