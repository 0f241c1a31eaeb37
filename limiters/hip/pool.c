/* Pools keep what is freed into them: what they hold stays charged until they give it back. */
#include "../shared/pools.h"

#include "../shared/blocks.h"
#include "../shared/bodies.h"
#include "../shared/capturing.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/driver.h"

#include <pthread.h>

static __thread bool in_pool; /* this thread has the lock */

/* The pools that memory was got from, in the order of their first use; NULL: gone. */
#define POOLS 64u
static hipMemPool_t pools[POOLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and keeps what a pool reserves in step */

void pools_after_fork(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < POOLS; i++)
        pools[i] = NULL;
}

static uint64_t reserved(hipMemPool_t pool)
{
    uint64_t bytes = 0;
    return REAL(hipMemPoolGetAttribute)(pool, hipMemPoolAttrReservedMemCurrent, &bytes) == hipSuccess ? bytes : 0;
}

static bool is_of(const struct entry *entry, const void *pool)
{
    return entry->kind == HELD_CHUNK && entry->owner == pool;
}

static void give_back_all_of(hipMemPool_t pool)
{
    struct entry entry;
    while (table_take_match(is_of, pool, &entry))
        give_back(&entry);
}

/* Which chunks went is not told, but for all of them. */
static void settle_all(bool trimmed)
{
    if (in_pool)
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POOLS && pools[i] != NULL; i++) {
        if (trimmed)
            REAL(hipMemPoolTrimTo)(pools[i], 0);
        if (reserved(pools[i]) == 0)
            give_back_all_of(pools[i]);
    }
    pthread_mutex_unlock(&lock);
}

bool pools_known(void)
{
    return __atomic_load_n(&pools[0], __ATOMIC_ACQUIRE) != NULL;
}

void pools_settle(int device)
{
    (void)device;
    settle_all(false);
}

void pools_trim(int device)
{
    (void)device;
    settle_all(true);
}

void pools_used(int device, hipStream_t stream)
{
    (void)device, (void)stream; /* a pool keeps what is freed */
}

bool pools_pending(int device)
{
    (void)device;
    return false;
}

void pools_stream_over(hipStream_t stream)
{
    (void)stream;
}

/* With the lock held. False: there are too many. */
static bool remember(hipMemPool_t pool)
{
    unsigned i = 0;
    while (i < POOLS && pools[i] != NULL && pools[i] != pool)
        i++;
    if (i < POOLS)
        __atomic_store_n(&pools[i], pool, __ATOMIC_RELEASE);
    return i < POOLS;
}

static hipError_t undo_async(void *pointer)
{
    return REAL(hipFreeAsync)(pointer, NULL);
}

/* What the pool took for an allocation: nothing, or a chunk that the allocation is. With the lock held. */
static hipError_t settle_chunk(void *pointer, hipMemPool_t pool, int device, uint64_t held, uint64_t grown)
{
    uint64_t taken = blocks_for(grown), more = taken > held ? taken - held : 0;
    if (!counted(device))
        return hipSuccess;
    if (grown == 0 || taken == 0) {
        refund(device, held);
        return grown == 0 ? hipSuccess : settle_piece_of(HELD_CHUNK, pointer, device, pool, undo_async);
    }
    bool over = charge(device, more) != hipSuccess; /* until the pool gives the chunk back it has what was charged */
    struct entry entry = {.key = (uintptr_t)pointer, .kind = HELD_CHUNK, .device = device, .owner = pool};
    entry.bytes = over ? held : held + more;
    keep(&entry);
    return over ? undo_async(pointer), hipErrorOutOfMemory : hipSuccess;
}

/* Charged as if the pool had nothing to reuse; what it did reuse is given back. */
static hipError_t from_pool(hipError_t (*real)(void **, size_t, hipMemPool_t, hipStream_t), void **pointer,
                            size_t bytes, hipMemPool_t pool, hipStream_t stream, int device)
{
    uint64_t held = blocks_for(bytes);
    if (counted(device) && stream_capturing(stream)) /* memory of the graph (../shared/no_graphs.c) */
        return hipErrorStreamCaptureUnsupported;
    hipError_t answer = charge(device, held);
    if (answer != hipSuccess)
        return answer;
    pthread_mutex_lock(&lock);
    in_pool = true;
    uint64_t before = reserved(pool);
    answer = remember(pool) ? real(pointer, bytes, pool, stream) : hipErrorOutOfMemory;
    if (answer == hipSuccess)
        answer = settle_chunk(*pointer, pool, device, held, reserved(pool) - before);
    else
        refund(device, counted(device) ? held : 0);
    in_pool = false;
    pthread_mutex_unlock(&lock);
    if (answer != hipSuccess)
        pools_trim(device);
    return answer;
}

hipError_t allocate_from_pool(hipError_t (*real)(void **, size_t, hipMemPool_t, hipStream_t), void **pointer,
                              size_t bytes, hipMemPool_t pool, hipStream_t stream)
{
    return from_pool(real, pointer, bytes, pool, stream, device_of_stream(stream == NULL ? STREAM_LEGACY : stream));
}

hipError_t allocate_async(hipError_t (*real)(void **, size_t, hipStream_t), void **pointer, size_t bytes,
                          hipStream_t stream)
{
    hipMemPool_t pool;
    int device = device_of_stream(stream == NULL ? STREAM_LEGACY : stream);
    if (device == DEVICE_FOREIGN || REAL(hipMallocFromPoolAsync) == NULL)
        return device == DEVICE_FOREIGN ? hipErrorOutOfMemory : hipErrorNotSupported;
    if (device == DEVICE_NONE || REAL(hipDeviceGetMemPool)(&pool, ordinal_of(device)) != hipSuccess)
        return real(pointer, bytes, stream);
    return from_pool(REAL(hipMallocFromPoolAsync), pointer, bytes, pool, stream, device);
}

static bool is_on(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_CHUNK && entry->device == *(const int *)device;
}

void pools_context_over(context_t context)
{
    struct entry entry;
    int device = device_of(ORDINAL_OF(context));
    while (table_take_match(is_on, &device, &entry))
        give_back(&entry);
}

hipError_t trim_pool(hipError_t (*real)(hipMemPool_t, size_t), hipMemPool_t pool, size_t keep)
{
    hipError_t answer = real(pool, keep);
    pools_settle(DEVICE_NONE);
    return answer;
}

hipError_t destroy_pool(hipError_t (*real)(hipMemPool_t), hipMemPool_t pool)
{
    pthread_mutex_lock(&lock);
    hipError_t answer = real(pool);
    unsigned last = 0, at = POOLS;
    for (; last < POOLS && pools[last] != NULL; last++)
        at = pools[last] == pool ? last : at;
    if (answer == hipSuccess && at < last) {
        pools[at] = pools[last - 1];
        pools[last - 1] = NULL;
        give_back_all_of(pool);
    }
    pthread_mutex_unlock(&lock);
    return answer;
}
