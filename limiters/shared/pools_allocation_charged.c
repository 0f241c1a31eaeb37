/* Pools of an API that charges them by what they gave: they keep what is freed into them, and nothing of theirs comes
 * back when a stream gets there. What they hold stays charged until they give it back. */
#include "pools.h"

#include "blocks.h"
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"

#include <pthread.h>

static __thread bool in_pool; /* this thread has the lock */

/* The pools that memory was got from; NULL: no more. One that is over was destroyed by the program, and goes when the
 * runtime has nothing of it in use: destroyed before, it would not say any more when that goes. */
#define POOLS 64u
static TYPE(memoryPool) pools[POOLS];
static bool over[POOLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and keeps what a pool reserves in step */

/* Under the lock: calls that changed what a pool has in use, or the list; and those under way that do so outside. */
static uint64_t changes;
static unsigned outside;

/* Own what was freed into a pool that is not known: while the call is under way, and for good where others changed what
 * pools have meanwhile. */
static char leaving, unsure;

void pools_after_fork(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    outside = 0;
    for (unsigned i = 0; i < POOLS; i++)
        pools[i] = NULL, over[i] = false;
}

/* What pools have in use changes between these, under the lock. */
static void change_begins(void)
{
    pthread_mutex_lock(&lock);
    in_pool = true;
}

static void change_ends(void)
{
    changes++;
    in_pool = false;
    pthread_mutex_unlock(&lock);
}

static uint64_t figure(TYPE(memoryPool) pool, TYPE(memPoolAttr) which)
{
    uint64_t bytes = 0;
    return DRIVER(MemPoolGetAttribute)(pool, which, &bytes) == RESULT_OK ? bytes : 0;
}

static uint64_t reserved(TYPE(memoryPool) pool)
{
    return figure(pool, VALUE(MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

static uint64_t used(TYPE(memoryPool) pool)
{
    return figure(pool, VALUE(MEMPOOL_ATTR_USED_MEM_CURRENT));
}

static bool is_of(const struct entry *entry, const void *pool)
{
    return (entry->kind == HELD_CHUNK || entry->kind == HELD_FREED) && entry->owner == pool;
}

static bool is_freed_of(const struct entry *entry, const void *pool)
{
    return entry->kind == HELD_FREED && entry->owner == pool;
}

static bool may_be_kept_by(const struct entry *entry, const void *pool)
{
    return is_freed_of(entry, pool) || is_freed_of(entry, &unsure) || is_freed_of(entry, &leaving);
}

static void give_back_all(const void *pool, bool (*which)(const struct entry *, const void *))
{
    struct entry entry;
    while (table_take_match(which, pool, &entry))
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
    changes++;
    --*at;
}

/* Give back what a pool has not any more: all, or what was freed if it keeps nothing. Freed at once, a chunk may count
 * as used for ever (pool_release_at_once). Whether it keeps something. */
static bool settle_pool(TYPE(memoryPool) pool)
{
    uint64_t all = reserved(pool);
    if (all == 0)
        give_back_all(pool, is_of);
    else if (all == used(pool) && !FAULT(pool_returns_unnoticed))
        give_back_all(pool, is_freed_of);
    else
        return true;
    return false;
}

static void settle_all(bool trimmed)
{
    bool kept = false;
    if (in_pool)
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POOLS && pools[i] != NULL; i++) {
        struct entry chunk;
        if (trimmed || over[i])
            DRIVER(MemPoolTrimTo)(pools[i], 0);
        kept = settle_pool(pools[i]) || kept;
        if (over[i] && !table_find(is_of, pools[i], &chunk)) {
            DRIVER(MemPoolDestroy)(pools[i]);
            forget(&i);
        }
    }
    if (!kept)
        give_back_all(&unsure, is_freed_of);
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

/* With the lock held: where it is on the list, or where the list ends. */
static unsigned place_of(TYPE(memoryPool) pool)
{
    unsigned i = 0;
    while (i < POOLS && pools[i] != NULL && pools[i] != pool)
        i++;
    return i;
}

/* The same, and it is there. POOLS: there are too many. */
static unsigned remember(TYPE(memoryPool) pool)
{
    unsigned i = place_of(pool);
    if (i < POOLS)
        __atomic_store_n(&pools[i], pool, __ATOMIC_RELEASE);
    return i;
}

static result_t undo_async(pointer_t pointer)
{
    return DRIVER(MemFreeAsync)(pointer, NULL);
}

/* A chunk that was freed is used again. One that cannot be told apart makes all of its pool count as used. */
static void used_again(pointer_t pointer, TYPE(memoryPool) pool)
{
    struct entry chunk;
    bool known = table_take(HELD_FREED, (uintptr_t)pointer, &chunk);
    while (known || table_take_match(may_be_kept_by, pool, &chunk)) {
        chunk.kind = HELD_CHUNK;
        chunk.owner = pool;
        keep(&chunk);
        if (known)
            return;
    }
}

/* What the pool took for an allocation: nothing, or a chunk that the allocation is. With the lock held. */
static result_t settle_chunk(pointer_t pointer, TYPE(memoryPool) pool, int device, uint64_t held, uint64_t grown)
{
    uint64_t taken = blocks_for(grown), more = taken > held ? taken - held : 0;
    if (!counted(device))
        return RESULT_OK;
    if (grown == 0 || taken == 0)
        refund(device, held);
    if (grown == 0 && !FAULT(chunk_reuse_unnoticed))
        used_again(pointer, pool);
    if (grown == 0 || taken == 0)
        return grown == 0 ? RESULT_OK : settle_piece_of(HELD_CHUNK, pointer, device, pool, undo_async);
    bool over = charge(device, more) != RESULT_OK; /* until the pool gives the chunk back it has what was charged */
    struct entry entry = {.key = (uintptr_t)pointer, .device = device, .owner = pool};
    entry.kind = over ? HELD_FREED : HELD_CHUNK;
    entry.bytes = over ? held : held + more;
    keep(&entry);
    return over ? undo_async(pointer), ERROR(OUT_OF_MEMORY) : RESULT_OK;
}

/* With the lock held and the allocation charged. */
static result_t take_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), pointer_t *pointer,
                               size_t bytes, TYPE(memoryPool) pool, stream_t stream, int device)
{
    uint64_t held = blocks_for(bytes), before = reserved(pool);
    result_t answer = remember(pool) < POOLS ? real(pointer, bytes, pool, stream) : ERROR(OUT_OF_MEMORY);
    uint64_t after = reserved(pool);
    if (answer == RESULT_OK) /* less: a thread that waits for a stream had the pool give back what it kept */
        return settle_chunk(*pointer, pool, device, held, after < before ? bytes : after - before);
    refund(device, counted(device) ? held : 0);
    return answer;
}

/* Charged as if the pool had nothing to reuse; what it did reuse is given back. */
static result_t from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), pointer_t *pointer,
                          size_t bytes, TYPE(memoryPool) pool, stream_t stream, int device)
{
    if (counted(device) && stream_capturing(stream)) /* memory of the graph (graph_memory_refused.c) */
        return ERROR(STREAM_CAPTURE_UNSUPPORTED);
    result_t answer = charge(device, blocks_for(bytes));
    if (answer != RESULT_OK)
        return answer;
    change_begins();
    answer = take_from_pool(real, pointer, bytes, pool, stream, device);
    change_ends();
    if (answer != RESULT_OK)
        pools_trim(device);
    return answer;
}

result_t allocate_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), pointer_t *pointer,
                            size_t bytes, TYPE(memoryPool) pool, stream_t stream)
{
    return from_pool(real, pointer, bytes, pool, stream, device_of_stream(stream == NULL ? STREAM_LEGACY : stream));
}

result_t allocate_async(result_t (*real)(pointer_t *, size_t, stream_t), pointer_t *pointer, size_t bytes,
                        stream_t stream)
{
    TYPE(memoryPool) pool;
    int device = device_of_stream(stream == NULL ? STREAM_LEGACY : stream);
    if (device == DEVICE_FOREIGN || DRIVER(MemAllocFromPoolAsync) == NULL)
        return device == DEVICE_FOREIGN ? ERROR(OUT_OF_MEMORY) : ERROR(NOT_SUPPORTED);
    if (device == DEVICE_NONE || DRIVER(DeviceGetMemPool)(&pool, ordinal_of(device)) != RESULT_OK)
        return real(pointer, bytes, stream);
    return from_pool(DRIVER(MemAllocFromPoolAsync), pointer, bytes, pool, stream, device);
}

/* The pools of a device that was reset hold nothing any more. One that is not gone is known again with its next use. */
void pools_context_over(context_t context)
{
    struct entry chunk;
    (void)context;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POOLS && pools[i] != NULL; i++)
        if (!table_find(is_of, pools[i], &chunk))
            forget(&i);
    pthread_mutex_unlock(&lock);
}

/* ----------------------------------------------------------------------------------------------- what is freed */

/* With the lock held: what each pool has in use before a call that frees a chunk. */
static void note(uint64_t before[POOLS])
{
    for (unsigned i = 0; i < POOLS && pools[i] != NULL; i++)
        before[i] = used(pools[i]);
}

/* With the lock held: the pool that has less in use than before; NULL: none has. */
static TYPE(memoryPool) taker(const uint64_t before[POOLS])
{
    unsigned i = 0;
    while (i < POOLS && pools[i] != NULL && used(pools[i]) >= before[i])
        i++;
    return i < POOLS ? pools[i] : NULL;
}

/* A chunk is of this kind and this owner's now. */
static void keep_as(uint32_t kind, struct entry chunk, void *owner)
{
    chunk.kind = kind;
    chunk.owner = owner;
    keep(&chunk);
}

/* Whether a pool keeps this, which was freed, and nothing else has its address by now. Freed again, AMD's runtime 5.2.3
 * says OK, gives the card back what the pool goes on to have, and ends by SIGSEGV when that is had again or trimmed: at
 * the limit, which trims, long before the card is full. So it is not asked. By its source (hip_mempool.cpp, 2026) 7
 * goes the same way. */
bool pool_keeps(pointer_t pointer)
{
    struct entry entry;
    uint64_t key = (uintptr_t)pointer;
    if (!table_get(HELD_FREED, key, &entry) || table_get(HELD_CHUNK, key, &entry) ||
        (table_get(HELD_POINTER, key, &entry) && !FAULT(reused_address_as_freed)) ||
        table_get(HELD_SHARED, key, &entry))
        return false;
    pthread_mutex_lock(&lock);
    bool kept = false;
    if (table_get(HELD_FREED, key, &entry)) {
        unsigned at = place_of(entry.owner);
        kept = !FAULT(double_free_passed_on) && at < POOLS && pools[at] != NULL && settle_pool(pools[at]) &&
               table_get(HELD_FREED, key, &entry);
    }
    pthread_mutex_unlock(&lock);
    return kept;
}

/* Whether a chunk is used again is told under the lock, too. AMD's runtime 5.2.3 looks for its address in one pool
 * after the other, and gives it to one that had another chunk there, which was freed at once and counts as used for
 * ever. */
result_t pool_release(result_t (*real)(pointer_t, stream_t), pointer_t pointer, stream_t stream)
{
    struct entry chunk;
    uint64_t before[POOLS];
    change_begins();
    note(before);
    result_t answer = real(pointer, stream);
    if (answer == RESULT_OK && table_take(HELD_CHUNK, (uintptr_t)pointer, &chunk)) {
        TYPE(memoryPool) has = taker(before);
        keep_as(HELD_FREED, chunk,
                outside > 0                                              ? (void *)&unsure
                : has != NULL && !FAULT(chunks_of_other_pools_unnoticed) ? has
                                                                         : chunk.owner);
    }
    change_ends();
    return answer;
}

static bool is_leaving(const struct entry *entry, const void *pointer)
{
    return is_freed_of(entry, &leaving) && entry->key == (uintptr_t)pointer;
}

/* With the lock held: a chunk was freed, unless it is used again by now. `sure`: by no other call did pools change. */
static void settle_freed(pointer_t pointer, const uint64_t before[POOLS], bool sure)
{
    struct entry chunk;
    TYPE(memoryPool) has = sure ? taker(before) : NULL;
    if (!table_take_match(is_leaving, pointer, &chunk))
        return;
    if (sure && has == NULL && !FAULT(pool_loss_unnoticed))
        give_back(&chunk);
    else
        keep_as(FAULT_VALUE(freed_chunks_as_used, HELD_FREED, HELD_CHUNK), chunk, sure ? has : (void *)&unsure);
}

/* A free that is under way outside the lock: of what, and what was so when it began. */
struct departure {
    struct entry chunk;
    uint64_t before[POOLS], change;
    bool alone;
};

/* False: it is no pool's any more. The chunk is marked, for it may be used again before the call returns. */
static bool departs(pointer_t pointer, struct departure *of)
{
    pthread_mutex_lock(&lock);
    bool ours = table_take(HELD_CHUNK, (uintptr_t)pointer, &of->chunk);
    if (ours) {
        keep_as(HELD_FREED, of->chunk, &leaving);
        of->alone = outside++ == 0;
        of->change = ++changes;
        note(of->before);
    }
    pthread_mutex_unlock(&lock);
    return ours;
}

/* AMD's runtime 5.2.3 gives the card back what of a pool is freed by hipFree, and the pool does not know: it counts as
 * used for ever. A pool that keeps it has less in use then. The call waits for the device, so others go on. */
result_t pool_release_at_once(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct departure of;
    struct entry marked;
    if (!departs(pointer, &of))
        return real(pointer);
    result_t answer = real(pointer);
    change_begins();
    if (answer == RESULT_OK)
        settle_freed(pointer, of.before, of.alone && changes == of.change);
    else if (table_take_match(is_leaving, pointer, &marked))
        keep_as(HELD_CHUNK, of.chunk, of.chunk.owner);
    outside--;
    change_ends();
    return answer;
}

/* Under the lock: while another thread allocates, what a pool grows by would be too little. */
result_t trim_pool(result_t (*real)(TYPE(memoryPool), size_t), TYPE(memoryPool) pool, size_t keep)
{
    pthread_mutex_lock(&lock);
    result_t answer = real(pool, keep);
    pthread_mutex_unlock(&lock);
    pools_settle(DEVICE_NONE);
    return answer;
}

/* A pool that is over is no device's any more. */
static void leave_device(TYPE(memoryPool) pool, int ordinal)
{
    TYPE(memoryPool) other;
    if (DRIVER(DeviceGetMemPool)(&other, ordinal) == RESULT_OK && other == pool &&
        DRIVER(DeviceGetDefaultMemPool)(&other, ordinal) == RESULT_OK)
        DRIVER(DeviceSetMemPool)(ordinal, other);
}

/* With the lock held: whether a pool that the program destroys has something in use. Else it is off the list. */
static bool outlives(TYPE(memoryPool) pool)
{
    struct entry chunk;
    bool holds = table_find(is_of, pool, &chunk);
    unsigned at = holds ? remember(pool) : place_of(pool);
    if (at < POOLS && holds) {
        over[at] = true;
        leave_device(pool, ordinal_of(chunk.device));
    } else if (at < POOLS && pools[at] == pool && !FAULT(gone_pools_known)) {
        forget(&at);
    }
    return holds && at < POOLS;
}

result_t destroy_pool(result_t (*real)(TYPE(memoryPool)), TYPE(memoryPool) pool)
{
    pthread_mutex_lock(&lock);
    bool later = outlives(pool);
    pthread_mutex_unlock(&lock);
    if (!later)
        return real(pool);
    if (FAULT(destroyed_pool_refunded))
        give_back_all(pool, is_of);
    else
        settle_all(false);
    return RESULT_OK;
}

void pools_used(int device, stream_t stream)
{
    (void)device, (void)stream;
}

bool pools_pending(int device)
{
    (void)device;
    return false;
}

/* None is exported. */
uint64_t pools_idle(int device, bool exported)
{
    (void)device, (void)exported;
    return 0;
}

void pools_stream_over(stream_t stream)
{
    (void)stream;
}
