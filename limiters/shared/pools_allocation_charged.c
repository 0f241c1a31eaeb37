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

static __thread bool holds_pools_mutex; /* this thread has the lock */

/* The pools that memory was got from; NULL: no more. One that is over was destroyed by the program, and goes when the
 * runtime has nothing of it in use: destroyed before, it would not say any more when that goes. */
#define POOLS 64u
static TYPE(memoryPool) pools[POOLS];
static bool is_destroyed[POOLS];
static pthread_mutex_t pools_mutex =
    PTHREAD_MUTEX_INITIALIZER; /* guards the list, and keeps what a pool reserves in step */

/* Under the lock: calls that changed what a pool has in use, or the list; and those under way that do so outside. */
static uint64_t change_count;
static unsigned frees_outside;

/* Own what was freed into a pool that is not known: while the call is under way, and for good where others changed what
 * pools have meanwhile. */
static char leaving_tag, uncertain_tag;

void pools_after_fork(void)
{
    pools_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    frees_outside = 0;
    for (unsigned index = 0; index < POOLS; index++)
        pools[index] = NULL, is_destroyed[index] = false;
}

/* What pools have in use changes between these, under the lock. */
static void change_begins(void)
{
    pthread_mutex_lock(&pools_mutex);
    holds_pools_mutex = true;
}

static void change_ends(void)
{
    change_count++;
    holds_pools_mutex = false;
    pthread_mutex_unlock(&pools_mutex);
}

static uint64_t pool_attribute(TYPE(memoryPool) pool, TYPE(memPoolAttr) attribute)
{
    uint64_t bytes = 0;
    return DRIVER(MemPoolGetAttribute)(pool, attribute, &bytes) == RESULT_OK ? bytes : 0;
}

static uint64_t reserved_bytes(TYPE(memoryPool) pool)
{
    return pool_attribute(pool, VALUE(MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

static uint64_t used_bytes(TYPE(memoryPool) pool)
{
    return pool_attribute(pool, VALUE(MEMPOOL_ATTR_USED_MEM_CURRENT));
}

static bool is_chunk_of(const struct entry *entry, const void *pool)
{
    return (entry->kind == HELD_CHUNK || entry->kind == HELD_FREED) && entry->owner == pool;
}

static bool is_freed_of(const struct entry *entry, const void *pool)
{
    return entry->kind == HELD_FREED && entry->owner == pool;
}

static bool may_be_kept_by(const struct entry *entry, const void *pool)
{
    return is_freed_of(entry, pool) || is_freed_of(entry, &uncertain_tag) || is_freed_of(entry, &leaving_tag);
}

static void give_back_all(const void *pool, bool (*matches)(const struct entry *, const void *))
{
    struct entry entry;
    while (table_take_match(matches, pool, &entry))
        give_back(&entry);
}

/* Take a pool off the list; what took its place there is looked at next. */
static void forget(unsigned *index)
{
    unsigned last_index = *index;
    while (last_index + 1 < POOLS && pools[last_index + 1] != NULL)
        last_index++;
    pools[*index] = pools[last_index];
    is_destroyed[*index] = is_destroyed[last_index];
    pools[last_index] = NULL;
    is_destroyed[last_index] = false;
    change_count++;
    --*index;
}

/* Give back what a pool has not any more: all, or what was freed if it keeps nothing. Freed at once, a chunk may count
 * as used for ever (pool_release_at_once). Whether it keeps something. */
static bool settle_pool(TYPE(memoryPool) pool)
{
    uint64_t pool_bytes = reserved_bytes(pool);
    if (pool_bytes == 0)
        give_back_all(pool, is_chunk_of);
    else if (pool_bytes == used_bytes(pool) && !FAULT(pool_returns_unnoticed))
        give_back_all(pool, is_freed_of);
    else
        return true;
    return false;
}

static void settle_all(bool is_trimmed)
{
    bool keeps_memory = false;
    if (holds_pools_mutex)
        return;
    pthread_mutex_lock(&pools_mutex);
    for (unsigned index = 0; index < POOLS && pools[index] != NULL; index++) {
        struct entry chunk;
        if (is_trimmed || is_destroyed[index])
            DRIVER(MemPoolTrimTo)(pools[index], 0);
        keeps_memory = settle_pool(pools[index]) || keeps_memory;
        if (is_destroyed[index] && !table_find(is_chunk_of, pools[index], &chunk)) {
            DRIVER(MemPoolDestroy)(pools[index]);
            forget(&index);
        }
    }
    if (!keeps_memory)
        give_back_all(&uncertain_tag, is_freed_of);
    pthread_mutex_unlock(&pools_mutex);
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
static unsigned index_of(TYPE(memoryPool) pool)
{
    unsigned index = 0;
    while (index < POOLS && pools[index] != NULL && pools[index] != pool)
        index++;
    return index;
}

/* The same, and it is there. POOLS: there are too many. */
static unsigned remember(TYPE(memoryPool) pool)
{
    unsigned index = index_of(pool);
    if (index < POOLS)
        __atomic_store_n(&pools[index], pool, __ATOMIC_RELEASE);
    return index;
}

static result_t undo_async(pointer_t pointer)
{
    return DRIVER(MemFreeAsync)(pointer, NULL);
}

/* A chunk that was freed is used again. One that cannot be told apart makes all of its pool count as used. */
static void reuse_chunk(pointer_t pointer, TYPE(memoryPool) pool)
{
    struct entry chunk;
    bool is_known = table_take(HELD_FREED, (uintptr_t)pointer, &chunk);
    while (is_known || table_take_match(may_be_kept_by, pool, &chunk)) {
        chunk.kind = HELD_CHUNK;
        chunk.owner = pool;
        keep_entry(&chunk);
        if (is_known)
            return;
    }
}

/* What the pool took for an allocation: nothing, or a chunk that the allocation is. With the lock held. */
static result_t settle_chunk(pointer_t pointer, TYPE(memoryPool) pool, int device, uint64_t charged_bytes,
                             uint64_t grown_bytes)
{
    uint64_t chunk_bytes = block_bytes_of(grown_bytes),
             extra_bytes = chunk_bytes > charged_bytes ? chunk_bytes - charged_bytes : 0;
    if (!counted(device))
        return RESULT_OK;
    if (grown_bytes == 0 || chunk_bytes == 0)
        refund(device, charged_bytes);
    if (grown_bytes == 0 && !FAULT(chunk_reuse_unnoticed))
        reuse_chunk(pointer, pool);
    if (grown_bytes == 0 || chunk_bytes == 0)
        return grown_bytes == 0 ? RESULT_OK : settle_suballocation_of(HELD_CHUNK, pointer, device, pool, undo_async);
    bool is_over_limit = charge(device, extra_bytes) !=
                         RESULT_OK; /* until the pool gives the chunk back it has what was charged */
    struct entry entry = {.key = (uintptr_t)pointer, .device = device, .owner = pool};
    entry.kind = is_over_limit ? HELD_FREED : HELD_CHUNK;
    entry.bytes = is_over_limit ? charged_bytes : charged_bytes + extra_bytes;
    keep_entry(&entry);
    return is_over_limit ? undo_async(pointer), ERROR(OUT_OF_MEMORY) : RESULT_OK;
}

/* With the lock held and the allocation charged. */
static result_t take_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), pointer_t *pointer,
                               size_t bytes, TYPE(memoryPool) pool, stream_t stream, int device)
{
    uint64_t charged_bytes = block_bytes_of(bytes), reserved_before = reserved_bytes(pool);
    result_t answer = remember(pool) < POOLS ? real(pointer, bytes, pool, stream) : ERROR(OUT_OF_MEMORY);
    uint64_t reserved_after = reserved_bytes(pool);
    if (answer == RESULT_OK) /* less: a thread that waits for a stream had the pool give back what it kept */
        return settle_chunk(*pointer, pool, device, charged_bytes,
                            reserved_after < reserved_before ? bytes : reserved_after - reserved_before);
    refund(device, counted(device) ? charged_bytes : 0);
    return answer;
}

/* Charged as if the pool had nothing to reuse; what it did reuse is given back. */
static result_t charge_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), pointer_t *pointer,
                                 size_t bytes, TYPE(memoryPool) pool, stream_t stream, int device)
{
    if (counted(device) && stream_is_capturing(stream)) /* memory of the graph (graph_memory_refused.c) */
        return ERROR(STREAM_CAPTURE_UNSUPPORTED);
    result_t answer = charge(device, block_bytes_of(bytes));
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
    return charge_from_pool(real, pointer, bytes, pool, stream,
                            device_of_stream(stream == NULL ? STREAM_LEGACY : stream));
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
    return charge_from_pool(DRIVER(MemAllocFromPoolAsync), pointer, bytes, pool, stream, device);
}

/* The pools of a device that was reset hold nothing any more. One that is not gone is known again with its next use. */
void pools_context_ended(context_t context)
{
    struct entry chunk;
    (void)context;
    pthread_mutex_lock(&pools_mutex);
    for (unsigned index = 0; index < POOLS && pools[index] != NULL; index++)
        if (!table_find(is_chunk_of, pools[index], &chunk))
            forget(&index);
    pthread_mutex_unlock(&pools_mutex);
}

/* ----------------------------------------------------------------------------------------------- what is freed */

/* With the lock held: what each pool has in use before a call that frees a chunk. */
static void read_used(uint64_t used_before[POOLS])
{
    for (unsigned index = 0; index < POOLS && pools[index] != NULL; index++)
        used_before[index] = used_bytes(pools[index]);
}

/* With the lock held: the pool that has less in use than before; NULL: none has. */
static TYPE(memoryPool) pool_that_shrank(const uint64_t used_before[POOLS])
{
    unsigned index = 0;
    while (index < POOLS && pools[index] != NULL && used_bytes(pools[index]) >= used_before[index])
        index++;
    return index < POOLS ? pools[index] : NULL;
}

/* A chunk is of this kind and this owner's now. */
static void keep_as(uint32_t kind, struct entry chunk, void *owner)
{
    chunk.kind = kind;
    chunk.owner = owner;
    keep_entry(&chunk);
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
    pthread_mutex_lock(&pools_mutex);
    bool is_kept = false;
    if (table_get(HELD_FREED, key, &entry)) {
        unsigned index = index_of(entry.owner);
        is_kept = !FAULT(double_free_passed_on) && index < POOLS && pools[index] != NULL && settle_pool(pools[index]) &&
                  table_get(HELD_FREED, key, &entry);
    }
    pthread_mutex_unlock(&pools_mutex);
    return is_kept;
}

/* Whether a chunk is used again is told under the lock, too. AMD's runtime 5.2.3 looks for its address in one pool
 * after the other, and gives it to one that had another chunk there, which was freed at once and counts as used for
 * ever. */
result_t pool_release(result_t (*real)(pointer_t, stream_t), pointer_t pointer, stream_t stream)
{
    struct entry chunk;
    uint64_t used_before[POOLS];
    change_begins();
    read_used(used_before);
    result_t answer = real(pointer, stream);
    if (answer == RESULT_OK && table_take(HELD_CHUNK, (uintptr_t)pointer, &chunk)) {
        TYPE(memoryPool) receiver = pool_that_shrank(used_before);
        keep_as(HELD_FREED, chunk,
                frees_outside > 0                                             ? (void *)&uncertain_tag
                : receiver != NULL && !FAULT(chunks_of_other_pools_unnoticed) ? receiver
                                                                              : chunk.owner);
    }
    change_ends();
    return answer;
}

static bool is_leaving(const struct entry *entry, const void *pointer)
{
    return is_freed_of(entry, &leaving_tag) && entry->key == (uintptr_t)pointer;
}

/* With the lock held: a chunk was freed, unless it is used again by now. `sure`: by no other call did pools change. */
static void settle_freed(pointer_t pointer, const uint64_t used_before[POOLS], bool is_certain)
{
    struct entry chunk;
    TYPE(memoryPool) receiver = is_certain ? pool_that_shrank(used_before) : NULL;
    if (!table_take_match(is_leaving, pointer, &chunk))
        return;
    if (is_certain && receiver == NULL && !FAULT(pool_loss_unnoticed))
        give_back(&chunk);
    else
        keep_as(FAULT_VALUE(freed_chunks_as_used, HELD_FREED, HELD_CHUNK), chunk,
                is_certain ? receiver : (void *)&uncertain_tag);
}

/* A free that is under way outside the lock: of what, and what was so when it began. */
struct departure {
    struct entry chunk;
    uint64_t used_before[POOLS], change_count;
    bool is_alone;
};

/* False: it is no pool's any more. The chunk is marked, for it may be used again before the call returns. */
static bool begin_departure(pointer_t pointer, struct departure *departure)
{
    pthread_mutex_lock(&pools_mutex);
    bool is_chunk = table_take(HELD_CHUNK, (uintptr_t)pointer, &departure->chunk);
    if (is_chunk) {
        keep_as(HELD_FREED, departure->chunk, &leaving_tag);
        departure->is_alone = frees_outside++ == 0;
        departure->change_count = ++change_count;
        read_used(departure->used_before);
    }
    pthread_mutex_unlock(&pools_mutex);
    return is_chunk;
}

/* AMD's runtime 5.2.3 gives the card back what of a pool is freed by hipFree, and the pool does not know: it counts as
 * used for ever. A pool that keeps it has less in use then. The call waits for the device, so others go on. */
result_t pool_release_at_once(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct departure departure;
    struct entry marked_chunk;
    if (!begin_departure(pointer, &departure))
        return real(pointer);
    result_t answer = real(pointer);
    change_begins();
    if (answer == RESULT_OK)
        settle_freed(pointer, departure.used_before, departure.is_alone && change_count == departure.change_count);
    else if (table_take_match(is_leaving, pointer, &marked_chunk))
        keep_as(HELD_CHUNK, departure.chunk, departure.chunk.owner);
    frees_outside--;
    change_ends();
    return answer;
}

/* Under the lock: while another thread allocates, what a pool grows by would be too little. */
result_t trim_pool(result_t (*real)(TYPE(memoryPool), size_t), TYPE(memoryPool) pool, size_t keep_bytes)
{
    pthread_mutex_lock(&pools_mutex);
    result_t answer = real(pool, keep_bytes);
    pthread_mutex_unlock(&pools_mutex);
    pools_settle(DEVICE_NONE);
    return answer;
}

/* A pool that is over is no device's any more. */
static void leave_device(TYPE(memoryPool) pool, int ordinal)
{
    TYPE(memoryPool) current_pool;
    if (DRIVER(DeviceGetMemPool)(&current_pool, ordinal) == RESULT_OK && current_pool == pool &&
        DRIVER(DeviceGetDefaultMemPool)(&current_pool, ordinal) == RESULT_OK)
        DRIVER(DeviceSetMemPool)(ordinal, current_pool);
}

/* With the lock held: whether a pool that the program destroys has something in use. Else it is off the list. */
static bool has_chunks_in_use(TYPE(memoryPool) pool)
{
    struct entry chunk;
    bool has_chunks = table_find(is_chunk_of, pool, &chunk);
    unsigned index = has_chunks ? remember(pool) : index_of(pool);
    if (index < POOLS && has_chunks) {
        is_destroyed[index] = true;
        leave_device(pool, ordinal_of(chunk.device));
    } else if (index < POOLS && pools[index] == pool && !FAULT(gone_pools_known)) {
        forget(&index);
    }
    return has_chunks && index < POOLS;
}

result_t destroy_pool(result_t (*real)(TYPE(memoryPool)), TYPE(memoryPool) pool)
{
    pthread_mutex_lock(&pools_mutex);
    bool is_deferred = has_chunks_in_use(pool);
    pthread_mutex_unlock(&pools_mutex);
    if (!is_deferred)
        return real(pool);
    if (FAULT(destroyed_pool_refunded))
        give_back_all(pool, is_chunk_of);
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
uint64_t pools_idle_bytes(int device, bool only_exported)
{
    (void)device, (void)only_exported;
    return 0;
}

void pools_stream_ended(stream_t stream)
{
    (void)stream;
}
