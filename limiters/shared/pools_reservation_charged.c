/* The pools, what is charged for each, and the streams that they wait for (pools.h). All of
 * it is one list under one lock. */
#include "pools.h"

#include "blocks.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <pthread.h>
#include <stdlib.h>

struct pool {
    TYPE(memoryPool) handle;
    int device;
    enum pool_memory memory;
    bool over;        /* the program destroyed it */
    bool exported;    /* others may have it; it stays charged with the most it was until it is destroyed */
    bool gone;        /* the driver does not know it any more: its name may become another's */
    unsigned pins;    /* by those that have it from pool_remember or pool_current */
    uint64_t charged; /* bytes: what it reserved when it was last asked */
    struct pool *next;
};

/* Guards the list, what is charged for each pool, and the streams. Held while pools are asked what they hold, so that
 * none is destroyed meanwhile; never while the ledger is, nor around a call that waits. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static atomic_bool any; /* set with the first pool, never cleared */

/* Per device: what of exported pools others may have when they are gone here; what the region says of that and of the
 * pools themselves. */
static struct {
    uint64_t stuck, said;
    uint64_t managed; /* what is charged for pools of managed memory, which the process's figure does not have */
} shared[HETERO_MAX_DEVICES];
static atomic_bool any_said; /* set with the first such pool, never cleared */

/* Per device: held while a pool grows, from the charge to the answer, so that what it added is told apart. */
static pthread_mutex_t growing[HETERO_MAX_DEVICES] = {[0 ... HETERO_MAX_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};

/* Per device: the streams in whose order its pools' memory was freed, and which may not have come there yet. */
static struct {
    stream_t *streams;
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
        shared[device].stuck = shared[device].said = shared[device].managed = 0;
    }
}

static uint64_t in_units(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

uint64_t pool_chunks(uint64_t bytes)
{
    return in_units(bytes, POOL_CHUNK);
}

/* The same of one of this memory. */
static uint64_t units_of(const struct pool *pool, uint64_t bytes)
{
    return in_units(bytes, pool->memory == POOL_OF_MANAGED ? MANAGED_BATCH : POOL_CHUNK);
}

/* ------------------------------------------------------------------------------------------- what the driver says */

static bool of_graphs(const struct pool *pool)
{
    return pool->handle == POOL_OF_GRAPHS(pool->device);
}

static bool reserved_of(const struct pool *pool, uint64_t *bytes)
{
    if (of_graphs(pool))
        return DRIVER(DeviceGetGraphMemAttribute)(ordinal_of(pool->device), VALUE(GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT),
                                                  bytes) == RESULT_OK;
    if (DRIVER(MemPoolGetAttribute)(pool->handle, VALUE(MEMPOOL_ATTR_RESERVED_MEM_CURRENT), bytes) != RESULT_OK)
        return false;
    if (pool->memory == POOL_OF_MANAGED)
        *bytes = in_units(*bytes, MANAGED_BATCH);
    return true;
}

/* What a pool takes of its device: what others may have of an exported one counts until it is destroyed. */
static bool taken_by(const struct pool *pool, uint64_t *bytes)
{
    bool known = reserved_of(pool, bytes);
    if (known && pool->exported && !pool->over && *bytes < pool->charged)
        *bytes = pool->charged;
    return known;
}

static uint64_t used_of(const struct pool *pool)
{
    uint64_t bytes = 0;
    if (of_graphs(pool))
        DRIVER(DeviceGetGraphMemAttribute)(ordinal_of(pool->device), VALUE(GRAPH_MEM_ATTR_USED_MEM_CURRENT), &bytes);
    else
        DRIVER(MemPoolGetAttribute)(pool->handle, VALUE(MEMPOOL_ATTR_USED_MEM_CURRENT), &bytes);
    return bytes;
}

static void trim(const struct pool *pool)
{
    if (of_graphs(pool))
        DRIVER(DeviceGraphMemTrim)(ordinal_of(pool->device));
    else
        DRIVER(MemPoolTrimTo)(pool->handle, 0);
}

/* ------------------------------------------------------------------------------------------------------- the list */

static struct pool *known(TYPE(memoryPool) handle)
{
    struct pool *pool = pools;
    while (pool != NULL && (pool->handle != handle || pool->over || pool->gone))
        pool = pool->next;
    return pool;
}

/* With `counting` held: a pool of this name on another device ended, and its name is another's now. What was charged,
 * which of an exported one others may have. */
static uint64_t forget(struct pool *pool)
{
    uint64_t back = pool->charged;
    pool->gone = true;
    pool->charged = 0;
    return back;
}

/* With `counting` held: put one on the list; NULL: there is no memory for it. */
static struct pool *add(struct pool pool)
{
    struct pool *added = malloc(sizeof *added);
    if (added == NULL)
        return NULL;
    pool.next = pools;
    *added = pool;
    pools = added;
    atomic_store_explicit(&any, true, memory_order_relaxed);
    if (pool.memory == POOL_OF_MANAGED)
        atomic_store(&any_said, true);
    return added;
}

/* With `counting` held: one on the list, pinned, or NULL. What is charged no more of one that had its name on another
 * device, `ended`, and what of that others may have. */
static struct pool *pinned(struct pool asked, int *ended, uint64_t *back, uint64_t *kept)
{
    uint64_t reserved;
    struct pool *pool = known(asked.handle);
    if (pool != NULL && pool->device != asked.device) {
        *ended = pool->device;
        *(pool->exported ? kept : back) = forget(pool);
        shared[*ended].stuck += *kept;
        pool = NULL;
    }
    if (pool == NULL && reserved_of(&asked, &reserved))
        pool = add(asked);
    if (pool != NULL)
        pool->pins++;
    return pool;
}

/* `current`: the one that the device has now. The lock is held over both, so that it is not destroyed in between. */
static struct pool *remember(struct pool asked, bool current)
{
    uint64_t back = 0, kept = 0;
    int ended = asked.device;
    struct pool *pool = NULL;
    pthread_mutex_lock(&counting);
    if (!current || DRIVER(DeviceGetMemPool)(&asked.handle, ordinal_of(asked.device)) == RESULT_OK)
        pool = pinned(asked, &ended, &back, &kept);
    pthread_mutex_unlock(&counting);
    refund(ended, back);
    if (kept > 0)
        stays_charged(ended, kept);
    return pool;
}

struct pool *pool_remember(TYPE(memoryPool) handle, int device, enum pool_memory memory)
{
    return remember((struct pool){.handle = handle, .device = device, .memory = memory}, false);
}

struct pool *pool_current(int device)
{
    return remember((struct pool){.device = device, .memory = POOL_OF_DEVICE}, true);
}

TYPE(memoryPool) pool_name(const struct pool *pool)
{
    return pool->handle;
}

static void unpin(struct pool *pool)
{
    pthread_mutex_lock(&counting);
    pool->pins--;
    pthread_mutex_unlock(&counting);
}

bool pool_countable(TYPE(memoryPool) handle, int device, enum pool_memory memory)
{
    struct pool *pool = pool_remember(handle, device, memory);
    if (pool != NULL)
        unpin(pool);
    return pool != NULL;
}

bool pool_known(TYPE(memoryPool) handle, int *device)
{
    pthread_mutex_lock(&counting);
    struct pool *pool = known(handle);
    if (pool != NULL)
        *device = pool->device;
    pthread_mutex_unlock(&counting);
    return pool != NULL;
}

/* With `counting` held: forget the pools that are gone, and those destroyed that hold nothing any more; but for those
 * that are pinned. */
static void bury(void)
{
    for (struct pool **at = &pools; *at != NULL;) {
        struct pool *pool = *at;
        if ((!pool->over && !pool->gone) || pool->charged > 0 || (pool->pins > 0 && !FAULT(pinned_pools_buried))) {
            at = &pool->next;
            continue;
        }
        *at = pool->next;
        if (!pool->gone)
            DRIVER(MemPoolDestroy)(pool->handle);
        free(pool);
    }
}

/* With `counting` held: what a pool does not reserve any more; or, in `kept`, what others may have of that. */
static uint64_t settle_pool(struct pool *pool, bool trimmed, uint64_t *kept)
{
    uint64_t taken, back = 0;
    struct card_use before = {0};
    if (pool->exported && pool->over)
        before = card_use(pool->device);
    if (trimmed || pool->over)
        trim(pool);
    pool->gone = pool->gone || !taken_by(pool, &taken);
    if (pool->gone)
        taken = 0; /* it went with the last context, or with what kept it */
    if (taken < pool->charged && !FAULT(pools_stay_charged)) {
        back = pool->charged - taken;
        pool->charged = taken;
    }
    if (back == 0 || !pool->exported || card_got_back(pool->device, before, back))
        return back;
    *kept += back;
    return 0;
}

/* Say what others may have of the pools of a device, and what of them the process's figure does not have. */
static void say_pools(int device)
{
    if (!atomic_load_explicit(&any_said, memory_order_relaxed))
        return;
    pthread_mutex_lock(&counting);
    uint64_t bytes = shared[device].stuck, managed = 0;
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        bytes += pool->device == device && pool->exported ? pool->charged : 0;
        managed += pool->device == device && pool->memory == POOL_OF_MANAGED ? pool->charged : 0;
    }
    int64_t change = (int64_t)(bytes - shared[device].said), unseen = (int64_t)(managed - shared[device].managed);
    shared[device].said = bytes;
    shared[device].managed = managed;
    pthread_mutex_unlock(&counting);
    say_shared(device, change);
    unseen_add(device, unseen);
}

void pool_exported(struct pool *pool)
{
    int device = pool->device;
    pthread_mutex_lock(&counting);
    pool->exported = !FAULT(exported_pools_unknown);
    pool->pins--;
    pthread_mutex_unlock(&counting);
    atomic_store(&any_said, true);
    say_pools(device);
}

/* Of the pools of a device, trimmed if so wished: give back what they do not reserve any more. */
static void settle_all(int device, bool trimmed)
{
    uint64_t back = 0, kept = 0;
    bool idle = false;
    pthread_mutex_lock(&counting);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device != device || (trimmed && pool->charged == 0))
            continue;
        back += settle_pool(pool, trimmed, &kept);
        idle = idle || pool->charged >= used_of(pool) + POOL_CHUNK;
    }
    behind[device].lost = behind[device].lost && (idle || !trimmed);
    bury();
    shared[device].stuck += kept;
    pthread_mutex_unlock(&counting);
    refund(device, back);
    if (kept > 0)
        stays_charged(device, kept);
    say_pools(device);
}

void pools_settle(int device)
{
    settle_all(device, false);
}

uint64_t pools_idle(int device, bool exported)
{
    uint64_t bytes = 0;
    if (!pools_known())
        return 0;
    pthread_mutex_lock(&counting);
    for (const struct pool *pool = pools; pool != NULL; pool = pool->next) {
        uint64_t reserved = 0;
        if (pool->device != device || pool->memory == POOL_OF_MANAGED || pool->charged == 0 ||
            (exported && !pool->exported))
            continue;
        bool fewer = pool->gone || !reserved_of(pool, &reserved) || reserved < pool->charged;
        bytes += fewer ? pool->charged - reserved : 0;
    }
    pthread_mutex_unlock(&counting);
    return bytes;
}

void pools_context_over(context_t context)
{
    (void)context; /* the driver tells which pools are gone */
    for (int device = 0; pools_known() && device < (int)HETERO_MAX_DEVICES; device++)
        pools_settle(device);
}

void pools_trim(int device)
{
    settle_all(device, true);
}

void pool_destroy(struct pool *pool)
{
    int device = pool->device;
    pthread_mutex_lock(&counting);
    pool->over = true;
    pool->pins--;
    pthread_mutex_unlock(&counting);
    settle_all(device, false);
}

/* --------------------------------------------------------------------------------------------- streams to wait for */

void pools_used(int device, stream_t stream)
{
    pthread_mutex_lock(&counting);
    typeof(&behind[0]) of = &behind[device];
    size_t at = 0;
    while (at < of->count && of->streams[at] != stream)
        at++;
    if (at == of->room) {
        stream_t *more = realloc(of->streams, (of->room * 2 + 4) * sizeof *more);
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
static bool all_passed(int device, stream_t but)
{
    if (capturing())
        return false;
    TYPE(streamCaptureMode) mode = relax_captures();
    pthread_mutex_lock(&counting);
    typeof(&behind[0]) of = &behind[device];
    for (size_t at = 0; at < of->count;)
        if (of->streams[at] != STREAM_PER_THREAD && DRIVER(StreamQuery)(of->streams[at]) == RESULT_OK)
            of->streams[at] = of->streams[--of->count];
        else
            at++;
    bool passed = !of->lost &&
                  (of->count == 0 || (of->count == 1 && of->streams[0] == but && but != STREAM_PER_THREAD));
    pthread_mutex_unlock(&counting);
    restore_captures(mode);
    return passed;
}

void pools_stream_over(stream_t stream)
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
static bool fits(struct growth *growth, uint64_t bytes, uint64_t prepaid, stream_t stream)
{
    const struct pool *pool = growth->pool;
    uint64_t reserved = 0, used;
    growth->charged = units_of(pool, bytes);
    if (growth->charged <= prepaid || charge_fits(pool->device, growth->charged - prepaid))
        return true;
    if (!all_passed(pool->device, stream) || !taken_by(pool, &reserved))
        return false;
    used = used_of(pool);
    growth->charged = bytes > UINT64_MAX - used ? UINT64_MAX : used + bytes;
    growth->charged = growth->charged > reserved ? units_of(pool, growth->charged - reserved) : 0;
    return growth->charged <= prepaid || charge_fits(pool->device, growth->charged - prepaid);
}

result_t pool_grow(struct growth *growth, struct pool *pool, uint64_t bytes, uint64_t prepaid, stream_t stream)
{
    result_t answer = RESULT_OK;
    *growth = (struct growth){.pool = pool};
    pthread_mutex_lock(&growing[pool->device]);
    if (!fits(growth, bytes, prepaid, stream)) {
        more_room(pool->device, units_of(pool, bytes));
        fits(growth, bytes, prepaid, stream);
    }
    if (growth->charged > prepaid)
        answer = charge_now(pool->device, growth->charged - prepaid);
    else
        growth->charged = prepaid;
    if (answer != RESULT_OK) {
        pthread_mutex_unlock(&growing[pool->device]);
        unpin(pool);
    }
    return answer;
}

bool pool_grown(struct growth *growth)
{
    struct pool *pool = growth->pool;
    int device = pool->device;
    uint64_t reserved = 0;
    pthread_mutex_lock(&counting);
    if (!taken_by(pool, &reserved))
        reserved = pool->charged + growth->charged;
    int64_t more = (int64_t)(reserved - pool->charged - growth->charged);
    if (FAULT(pool_growth_uncharged) || FAULT(graph_memory_uncharged))
        more = -(int64_t)growth->charged;
    pool->charged = reserved;
    pool->pins--;
    pthread_mutex_unlock(&counting);
    say_pools(device);
    if (more < 0)
        refund(device, (uint64_t)-more);
    bool within = more <= 0 || charge_held(device, (uint64_t)more);
    pthread_mutex_unlock(&growing[device]);
    return within;
}
