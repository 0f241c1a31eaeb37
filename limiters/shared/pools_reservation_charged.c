/* Charges pools by the bytes that they reserve (pools.h). All pools are in one list under one lock. */
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
    bool is_destroyed;      /* by the program */
    bool is_exported;       /* others may have its memory open: its largest charge stays until it is destroyed */
    bool is_gone;           /* the driver does not know it any more, and may reuse its handle */
    bool is_promised;       /* an allocation that has begun is charged less its idle bytes, which stay charged */
    unsigned pin_count;     /* threads that have it from pool_remember() or pool_current() */
    uint64_t charged_bytes; /* that it reserved when its attribute was last read */
    struct pool *next;
};

/* Guards the list, the pools' charges, and the pending streams. Held while pools' attributes are read, so that none is
 * destroyed meanwhile. Never held together with the ledger's lock, nor around a call that waits. */
static pthread_mutex_t pools_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static atomic_bool has_pools; /* set with the first pool, never cleared */

/* By device of the grant. */
static struct {
    uint64_t stuck_bytes;    /* of ended exported pools, which others may still have open */
    uint64_t reported_bytes; /* in the region: of all that others may have open */
    uint64_t managed_bytes;  /* charged for pools of managed memory, which the driver's figure does not have */
} device_pools[HETERO_MAX_DEVICES];
static atomic_bool has_reported; /* set with the first exported or managed pool, never cleared */

/* By device: held while a pool grows, from the charge to the driver's answer, so that its growth is told apart. */
static pthread_mutex_t growth_mutexes[HETERO_MAX_DEVICES] = {
    [0 ... HETERO_MAX_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};

/* By device: the streams in whose order its pools' memory was freed, and which may not have passed the free yet. */
static struct {
    stream_t *streams;
    size_t stream_count, capacity;
    bool has_lost; /* a stream could not be added, or ended before it had passed */
} pending_streams[HETERO_MAX_DEVICES];

bool pools_known(void)
{
    return atomic_load_explicit(&has_pools, memory_order_relaxed);
}

void pools_after_fork(void)
{
    pools_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pools = NULL; /* nothing of the parent's is the child's */
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        growth_mutexes[device] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        pending_streams[device].streams = NULL;
        pending_streams[device].stream_count = pending_streams[device].capacity = 0;
        pending_streams[device].has_lost = false;
        device_pools[device].stuck_bytes = device_pools[device].reported_bytes = device_pools[device].managed_bytes = 0;
    }
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

uint64_t pool_chunk_bytes(uint64_t bytes)
{
    return round_up(bytes, POOL_CHUNK);
}

/* The units of a pool's memory that so many bytes take, in bytes. */
static uint64_t pool_units_of(const struct pool *pool, uint64_t bytes)
{
    return round_up(bytes, pool->memory == POOL_OF_MANAGED ? MANAGED_BATCH : POOL_CHUNK);
}

/* ------------------------------------------------------------------------------------------- what the driver says */

static bool is_of_graphs(const struct pool *pool)
{
    return pool->handle == POOL_OF_GRAPHS(pool->device);
}

static bool read_reserved(const struct pool *pool, uint64_t *reserved_bytes)
{
    if (is_of_graphs(pool))
        return DRIVER(DeviceGetGraphMemAttribute)(ordinal_of(pool->device), VALUE(GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT),
                                                  reserved_bytes) == RESULT_OK;
    if (DRIVER(MemPoolGetAttribute)(pool->handle, VALUE(MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved_bytes) !=
        RESULT_OK)
        return false;
    if (pool->memory == POOL_OF_MANAGED)
        *reserved_bytes = round_up(*reserved_bytes, MANAGED_BATCH);
    return true;
}

/* The bytes that a pool takes of its device. An exported pool takes its charge until it is destroyed, as others may
 * have it open. */
static bool read_taken(const struct pool *pool, uint64_t *taken_bytes)
{
    bool is_known = read_reserved(pool, taken_bytes);
    if (is_known && pool->is_exported && !pool->is_destroyed && *taken_bytes < pool->charged_bytes)
        *taken_bytes = pool->charged_bytes;
    return is_known;
}

static uint64_t used_bytes_of(const struct pool *pool)
{
    uint64_t bytes = 0;
    if (is_of_graphs(pool))
        DRIVER(DeviceGetGraphMemAttribute)(ordinal_of(pool->device), VALUE(GRAPH_MEM_ATTR_USED_MEM_CURRENT), &bytes);
    else
        DRIVER(MemPoolGetAttribute)(pool->handle, VALUE(MEMPOOL_ATTR_USED_MEM_CURRENT), &bytes);
    return bytes;
}

static void trim(const struct pool *pool)
{
    if (is_of_graphs(pool))
        DRIVER(DeviceGraphMemTrim)(ordinal_of(pool->device));
    else
        DRIVER(MemPoolTrimTo)(pool->handle, 0);
}

/* ------------------------------------------------------------------------------------------------------- the list */

static struct pool *find_pool(TYPE(memoryPool) handle)
{
    struct pool *pool = pools;
    while (pool != NULL && (pool->handle != handle || pool->is_destroyed || pool->is_gone))
        pool = pool->next;
    return pool;
}

/* With `pools_mutex` held: the pool ended, and its handle is another pool's now. Returns its charge. */
static uint64_t forget(struct pool *pool)
{
    uint64_t refund_bytes = pool->charged_bytes;
    pool->is_gone = true;
    pool->charged_bytes = 0;
    return refund_bytes;
}

/* With `pools_mutex` held: add a pool to the list; NULL: no memory. */
static struct pool *add_pool(struct pool pool)
{
    struct pool *added = malloc(sizeof *added);
    if (added == NULL)
        return NULL;
    pool.next = pools;
    *added = pool;
    pools = added;
    atomic_store_explicit(&has_pools, true, memory_order_relaxed);
    if (pool.memory == POOL_OF_MANAGED)
        atomic_store(&has_reported, true);
    return added;
}

/* With `pools_mutex` held: the pool of the list, pinned, or NULL. If a pool on another device had its handle, that one
 * ended: `ended_device` is set, and either its charge to give back, or the bytes that others may have open. */
static struct pool *find_pinned(struct pool pool_template, int *ended_device, uint64_t *refund_bytes,
                                uint64_t *kept_bytes)
{
    uint64_t reserved_bytes;
    struct pool *pool = find_pool(pool_template.handle);
    if (pool != NULL && pool->device != pool_template.device) {
        *ended_device = pool->device;
        *(pool->is_exported ? kept_bytes : refund_bytes) = forget(pool);
        device_pools[*ended_device].stuck_bytes += *kept_bytes;
        pool = NULL;
    }
    if (pool == NULL && read_reserved(&pool_template, &reserved_bytes))
        pool = add_pool(pool_template);
    if (pool != NULL)
        pool->pin_count++;
    return pool;
}

/* `is_current`: the device's current pool is meant. It is read under the lock, so that it is not destroyed before it is
 * pinned. */
static struct pool *remember(struct pool pool_template, bool is_current)
{
    uint64_t refund_bytes = 0, kept_bytes = 0;
    int ended_device = pool_template.device;
    struct pool *pool = NULL;
    pthread_mutex_lock(&pools_mutex);
    if (!is_current || DRIVER(DeviceGetMemPool)(&pool_template.handle, ordinal_of(pool_template.device)) == RESULT_OK)
        pool = find_pinned(pool_template, &ended_device, &refund_bytes, &kept_bytes);
    pthread_mutex_unlock(&pools_mutex);
    refund(ended_device, refund_bytes);
    if (kept_bytes > 0)
        leave_charged(ended_device, kept_bytes);
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
    pthread_mutex_lock(&pools_mutex);
    pool->pin_count--;
    pthread_mutex_unlock(&pools_mutex);
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
    pthread_mutex_lock(&pools_mutex);
    struct pool *pool = find_pool(handle);
    if (pool != NULL)
        *device = pool->device;
    pthread_mutex_unlock(&pools_mutex);
    return pool != NULL;
}

/* With `pools_mutex` held: free the records of pools that are gone, or that were destroyed and hold nothing, unless
 * they are pinned. */
static void free_ended_pools(void)
{
    for (struct pool **link = &pools; *link != NULL;) {
        struct pool *pool = *link;
        if ((!pool->is_destroyed && !pool->is_gone) || pool->charged_bytes > 0 ||
            (pool->pin_count > 0 && !FAULT(pinned_pools_buried))) {
            link = &pool->next;
            continue;
        }
        *link = pool->next;
        if (!pool->is_gone)
            DRIVER(MemPoolDestroy)(pool->handle);
        free(pool);
    }
}

/* With `pools_mutex` held: the charged bytes that a pool does not reserve any more. Bytes that others may have open are
 * added to `*kept_bytes` instead. None while the pool is promised: pool_grown() settles it. */
static uint64_t settle_pool(struct pool *pool, bool is_trimmed, uint64_t *kept_bytes)
{
    uint64_t taken_bytes, refund_bytes = 0;
    struct card_use use_before = {0};
    if (pool->is_promised && !FAULT(promised_idle_bytes_refunded))
        return 0;
    if (pool->is_exported && pool->is_destroyed)
        use_before = card_use(pool->device);
    if (is_trimmed || pool->is_destroyed)
        trim(pool);
    pool->is_gone = pool->is_gone || !read_taken(pool, &taken_bytes);
    if (pool->is_gone)
        taken_bytes = 0; /* it ended with the last context, or with its last allocation */
    if (taken_bytes < pool->charged_bytes && !FAULT(pools_stay_charged)) {
        refund_bytes = pool->charged_bytes - taken_bytes;
        pool->charged_bytes = taken_bytes;
    }
    if (refund_bytes == 0 || !pool->is_exported || card_got_back(pool->device, use_before, refund_bytes))
        return refund_bytes;
    *kept_bytes += refund_bytes;
    return 0;
}

/* Report the bytes of a device's pools that others may have open, and count those that the driver's figure lacks. */
static void report_pools(int device)
{
    if (!atomic_load_explicit(&has_reported, memory_order_relaxed))
        return;
    pthread_mutex_lock(&pools_mutex);
    uint64_t shared_bytes = device_pools[device].stuck_bytes, managed_bytes = 0;
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        shared_bytes += pool->device == device && pool->is_exported ? pool->charged_bytes : 0;
        managed_bytes += pool->device == device && pool->memory == POOL_OF_MANAGED ? pool->charged_bytes : 0;
    }
    int64_t shared_change = (int64_t)(shared_bytes - device_pools[device].reported_bytes),
            unseen_change = (int64_t)(managed_bytes - device_pools[device].managed_bytes);
    device_pools[device].reported_bytes = shared_bytes;
    device_pools[device].managed_bytes = managed_bytes;
    pthread_mutex_unlock(&pools_mutex);
    report_shared(device, shared_change);
    unseen_add(device, unseen_change);
}

void pool_exported(struct pool *pool)
{
    int device = pool->device;
    pthread_mutex_lock(&pools_mutex);
    pool->is_exported = !FAULT(exported_pools_unknown);
    pool->pin_count--;
    pthread_mutex_unlock(&pools_mutex);
    atomic_store(&has_reported, true);
    report_pools(device);
}

/* Give back charges for bytes that a device's pools do not reserve any more. `is_trimmed`: trim them first. */
static void settle_all(int device, bool is_trimmed)
{
    uint64_t refund_bytes = 0, kept_bytes = 0;
    bool has_idle = false;
    pthread_mutex_lock(&pools_mutex);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->device != device || (is_trimmed && pool->charged_bytes == 0))
            continue;
        refund_bytes += settle_pool(pool, is_trimmed, &kept_bytes);
        has_idle = has_idle || pool->charged_bytes >= used_bytes_of(pool) + POOL_CHUNK;
    }
    pending_streams[device].has_lost = pending_streams[device].has_lost && (has_idle || !is_trimmed);
    free_ended_pools();
    device_pools[device].stuck_bytes += kept_bytes;
    pthread_mutex_unlock(&pools_mutex);
    refund(device, refund_bytes);
    if (kept_bytes > 0)
        leave_charged(device, kept_bytes);
    report_pools(device);
}

void pools_settle(int device)
{
    settle_all(device, false);
}

uint64_t pools_idle_bytes(int device, bool only_exported)
{
    uint64_t bytes = 0;
    if (!pools_known())
        return 0;
    pthread_mutex_lock(&pools_mutex);
    for (const struct pool *pool = pools; pool != NULL; pool = pool->next) {
        uint64_t reserved_bytes = 0;
        if (pool->device != device || pool->memory == POOL_OF_MANAGED || pool->charged_bytes == 0 ||
            (only_exported && !pool->is_exported))
            continue;
        bool reserves_less = pool->is_gone || !read_reserved(pool, &reserved_bytes) ||
                             reserved_bytes < pool->charged_bytes;
        bytes += reserves_less ? pool->charged_bytes - reserved_bytes : 0;
    }
    pthread_mutex_unlock(&pools_mutex);
    return bytes;
}

void pools_context_ended(context_t context)
{
    (void)context; /* the driver's errors show which pools are gone */
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
    pthread_mutex_lock(&pools_mutex);
    pool->is_destroyed = true;
    pool->pin_count--;
    pthread_mutex_unlock(&pools_mutex);
    settle_all(device, false);
}

/* --------------------------------------------------------------------------------------------- streams to wait for */

void pools_used(int device, stream_t stream)
{
    pthread_mutex_lock(&pools_mutex);
    typeof(&pending_streams[0]) pending = &pending_streams[device];
    size_t index = 0;
    while (index < pending->stream_count && pending->streams[index] != stream)
        index++;
    if (index == pending->capacity) {
        stream_t *larger = realloc(pending->streams, (pending->capacity * 2 + 4) * sizeof *larger);
        pending->has_lost = pending->has_lost || larger == NULL;
        pending->streams = larger != NULL ? larger : pending->streams;
        pending->capacity = larger != NULL ? pending->capacity * 2 + 4 : pending->capacity;
    }
    if (index == pending->stream_count && index < pending->capacity)
        pending->streams[pending->stream_count++] = stream;
    pthread_mutex_unlock(&pools_mutex);
}

/* Whether all streams but `except` have passed their frees. No query is made while there is a capture. Per-thread
 * default streams have one handle and cannot be told apart, so they never count as passed. */
static bool have_all_passed(int device, stream_t except)
{
    if (capturing())
        return false;
    TYPE(streamCaptureMode) capture_mode = relax_captures();
    pthread_mutex_lock(&pools_mutex);
    typeof(&pending_streams[0]) pending = &pending_streams[device];
    for (size_t index = 0; index < pending->stream_count;)
        if (pending->streams[index] != STREAM_PER_THREAD && DRIVER(StreamQuery)(pending->streams[index]) == RESULT_OK)
            pending->streams[index] = pending->streams[--pending->stream_count];
        else
            index++;
    bool have_passed = !pending->has_lost &&
                       (pending->stream_count == 0 ||
                        (pending->stream_count == 1 && pending->streams[0] == except && except != STREAM_PER_THREAD));
    pthread_mutex_unlock(&pools_mutex);
    restore_captures(capture_mode);
    return have_passed;
}

void pools_stream_ended(stream_t stream)
{
    for (int device = 0; pools_known() && device < (int)HETERO_MAX_DEVICES; device++) {
        have_all_passed(device, NULL); /* takes the stream off the list if it has passed */
        pthread_mutex_lock(&pools_mutex);
        typeof(&pending_streams[0]) pending = &pending_streams[device];
        for (size_t index = 0; index < pending->stream_count; index++)
            if (pending->streams[index] == stream) {
                pending->streams[index] = pending->streams[--pending->stream_count];
                pending->has_lost = true;
            }
        pthread_mutex_unlock(&pools_mutex);
    }
}

bool pools_pending(int device)
{
    return pools_known() && !capturing() && !have_all_passed(device, NULL);
}

/* --------------------------------------------------------------------------------------------------------- growing */

/* With the growth mutex of the pool's device held: whether an allocation counts on the pool's idle bytes. */
static void set_promised(struct pool *pool, bool is_promised)
{
    pthread_mutex_lock(&pools_mutex);
    pool->is_promised = is_promised;
    pthread_mutex_unlock(&pools_mutex);
}

/* The growth of a pool whose idle bytes are promised to the allocation. False: it is not known. */
static bool growth_beyond_idle(struct growth *growth, uint64_t bytes)
{
    struct pool *pool = growth->pool;
    uint64_t reserved_bytes = 0;
    if (!read_taken(pool, &reserved_bytes))
        return false;
    uint64_t used_bytes = used_bytes_of(pool),
             all_bytes = bytes > UINT64_MAX - used_bytes ? UINT64_MAX : used_bytes + bytes;
    growth->charged_bytes = all_bytes > reserved_bytes ? pool_units_of(pool, all_bytes - reserved_bytes) : 0;
    return true;
}

/* Compute the growth that an allocation may cause: all of it, or less its idle bytes if all streams have passed.
 * Whether that fits. */
static bool growth_fits(struct growth *growth, uint64_t bytes, uint64_t prepaid_bytes, stream_t stream)
{
    struct pool *pool = growth->pool;
    growth->charged_bytes = pool_units_of(pool, bytes);
    if (growth->charged_bytes <= prepaid_bytes || charge_fits(pool->device, growth->charged_bytes - prepaid_bytes))
        return true;
    if (!have_all_passed(pool->device, stream))
        return false;
    set_promised(pool, true);
    return growth_beyond_idle(growth, bytes) &&
           (growth->charged_bytes <= prepaid_bytes || charge_fits(pool->device, growth->charged_bytes - prepaid_bytes));
}

result_t pool_grow(struct growth *growth, struct pool *pool, uint64_t bytes, uint64_t prepaid_bytes, stream_t stream)
{
    result_t answer = RESULT_OK;
    *growth = (struct growth){.pool = pool};
    pthread_mutex_lock(&growth_mutexes[pool->device]);
    if (!growth_fits(growth, bytes, prepaid_bytes, stream)) {
        set_promised(pool, false);
        reclaim(pool->device, pool_units_of(pool, bytes));
        growth_fits(growth, bytes, prepaid_bytes, stream);
    }
    if (growth->charged_bytes > prepaid_bytes)
        answer = charge_without_reclaim(pool->device, growth->charged_bytes - prepaid_bytes);
    else
        growth->charged_bytes = prepaid_bytes;
    if (answer != RESULT_OK) {
        set_promised(pool, false);
        pthread_mutex_unlock(&growth_mutexes[pool->device]);
        unpin(pool);
    }
    FAULT_PAUSE(promised_idle_bytes_refunded);
    return answer;
}

bool pool_grown(struct growth *growth)
{
    struct pool *pool = growth->pool;
    int device = pool->device;
    uint64_t reserved_bytes = 0;
    pthread_mutex_lock(&pools_mutex);
    if (!read_taken(pool, &reserved_bytes))
        reserved_bytes = pool->charged_bytes + growth->charged_bytes;
    int64_t growth_bytes = (int64_t)(reserved_bytes - pool->charged_bytes - growth->charged_bytes);
    if (FAULT(pool_growth_uncharged) || FAULT(graph_memory_uncharged))
        growth_bytes = -(int64_t)growth->charged_bytes;
    pool->charged_bytes = reserved_bytes;
    pool->is_promised = false;
    pool->pin_count--;
    pthread_mutex_unlock(&pools_mutex);
    report_pools(device);
    if (growth_bytes < 0)
        refund(device, (uint64_t)-growth_bytes);
    bool is_within = growth_bytes <= 0 || charge_unconditionally(device, (uint64_t)growth_bytes);
    pthread_mutex_unlock(&growth_mutexes[device]);
    return is_within;
}
