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

/* The pools that memory was got from; NULL: no more. One that is over was destroyed by the program, and goes when the
 * runtime has nothing of it in use: destroyed before, it would not say any more when that goes. */
#define POOLS 64u
static hipMemPool_t pools[POOLS];
static bool over[POOLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and keeps what a pool reserves in step */

static void forget_all(void)
{
    for (unsigned i = 0; i < POOLS; i++)
        pools[i] = NULL, over[i] = false;
}

void pools_after_fork(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    forget_all();
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

/* Take a pool off the list; what took its place there is looked at next. */
static void forget(unsigned *at)
{
    unsigned last = *at;
    while (last + 1 < POOLS && pools[last + 1] != NULL)
        last++;
    pools[*at] = pools[last];
    over[*at] = over[last];
    pools[last] = NULL;
    over[last] = false;
    --*at;
}

/* Which chunks went is not told, but for all of them. */
static void settle_all(bool trimmed)
{
    if (in_pool)
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POOLS && pools[i] != NULL; i++) {
        struct entry chunk;
        if (trimmed || over[i])
            REAL(hipMemPoolTrimTo)(pools[i], 0);
        if (reserved(pools[i]) == 0)
            give_back_all_of(pools[i]);
        if (over[i] && !table_find(is_of, pools[i], &chunk)) {
            REAL(hipMemPoolDestroy)(pools[i]);
            forget(&i);
        }
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

/* With the lock held: where it is on the list. POOLS: there are too many. */
static unsigned remember(hipMemPool_t pool)
{
    unsigned i = 0;
    while (i < POOLS && pools[i] != NULL && pools[i] != pool)
        i++;
    if (i < POOLS)
        __atomic_store_n(&pools[i], pool, __ATOMIC_RELEASE);
    return i;
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
    answer = remember(pool) < POOLS ? real(pointer, bytes, pool, stream) : hipErrorOutOfMemory;
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

/* The pools may be gone: one that is not is known again with its next use. */
void pools_context_over(context_t context)
{
    (void)context;
    pthread_mutex_lock(&lock);
    forget_all();
    pthread_mutex_unlock(&lock);
}

hipError_t trim_pool(hipError_t (*real)(hipMemPool_t, size_t), hipMemPool_t pool, size_t keep)
{
    hipError_t answer = real(pool, keep);
    pools_settle(DEVICE_NONE);
    return answer;
}

hipError_t destroy_pool(hipError_t (*real)(hipMemPool_t), hipMemPool_t pool)
{
    struct entry chunk;
    hipMemPool_t other;
    pthread_mutex_lock(&lock);
    unsigned at = table_find(is_of, pool, &chunk) ? remember(pool) : POOLS;
    if (at < POOLS) {
        int ordinal = ordinal_of(chunk.device);
        over[at] = true;
        if (REAL(hipDeviceGetMemPool)(&other, ordinal) == hipSuccess && other == pool &&
            REAL(hipDeviceGetDefaultMemPool)(&other, ordinal) == hipSuccess)
            REAL(hipDeviceSetMemPool)(ordinal, other);
    }
    pthread_mutex_unlock(&lock);
    if (at == POOLS)
        return real(pool);
    settle_all(false);
    return hipSuccess;
}
