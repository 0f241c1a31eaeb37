/* Charges pools by their allocations, for an API whose pools keep what is freed into them, also when the stream has
 * passed the free. A freed allocation (a chunk) stays charged until the pool returns it to the device. */
#include "pools.h"

#include "blocks.h"
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"

#include <pthread.h>

static __thread bool holds_pools_mutex; /* in this thread */

/* The pools that were allocated from, up to the first NULL. One that the program destroyed is destroyed in the runtime
 * when none of its memory is in use: the runtime does not report a destroyed pool's use. */
#define POOLS 64u
static TYPE(memoryPool) pools[POOLS];
static bool is_destroyed[POOLS];
static pthread_mutex_t pools_mutex =
    PTHREAD_MUTEX_INITIALIZER; /* guards the list, and pools' reserved bytes around calls */

/* Under the mutex: how many calls changed a pool's used bytes, or the list; and how many frees are being made outside
 * of the mutex. */
static uint64_t change_count;
static unsigned outside_free_count;

/* Stand for the owner of a freed chunk whose pool is not known: while its free is being made; and for good, if other
 * calls changed pools' used bytes meanwhile. */
static char leaving_tag, uncertain_tag;

void pools_after_fork(void)
{
    pools_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    outside_free_count = 0;
    for (unsigned index = 0; index < POOLS; index++)
        pools[index] = NULL, is_destroyed[index] = false;
}

/* Around calls that change pools' used bytes: take and release the mutex. */
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

/* Take a pool off the list. The last one takes its place, and `*index` is decremented, so that a loop visits it next.
 */
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

/* Give back charges of chunks that a pool does not have any more: all, or all freed ones if it keeps nothing. A chunk
 * that was freed at once may count as used for ever (pool_release_at_once). Whether the pool keeps freed chunks. */
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

/* With the mutex held: a pool's index in the list, or the index of its end. */
static unsigned index_of(TYPE(memoryPool) pool)
{
    unsigned index = 0;
    while (index < POOLS && pools[index] != NULL && pools[index] != pool)
        index++;
    return index;
}

/* The same, and the pool is added if it is not in the list. POOLS: the list is full. */
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

/* An allocation reuses a freed chunk. If the chunk is not known by its address, all chunks that the pool may keep
 * count as used. */
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

/* With the mutex held: settle the charge of an allocation for which the pool grew by `grown_bytes`. With 0 it reuses a
 * chunk, and its charge is given back. */
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
                         RESULT_OK; /* until the pool returns the chunk its charge stays */
    struct entry entry = {.key = (uintptr_t)pointer, .device = device, .owner = pool};
    entry.kind = is_over_limit ? HELD_FREED : HELD_CHUNK;
    entry.bytes = is_over_limit ? charged_bytes : charged_bytes + extra_bytes;
    keep_entry(&entry);
    return is_over_limit ? undo_async(pointer), ERROR(OUT_OF_MEMORY) : RESULT_OK;
}

/* With the mutex held and the allocation charged. */
static result_t take_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), pointer_t *pointer,
                               size_t bytes, TYPE(memoryPool) pool, stream_t stream, int device)
{
    uint64_t charged_bytes = block_bytes_of(bytes), reserved_before = reserved_bytes(pool);
    result_t answer = remember(pool) < POOLS ? real(pointer, bytes, pool, stream) : ERROR(OUT_OF_MEMORY);
    uint64_t reserved_after = reserved_bytes(pool);
    if (answer == RESULT_OK) /* it shrank: a thread that waits for a stream made the pool return chunks */
        return settle_chunk(*pointer, pool, device, charged_bytes,
                            reserved_after < reserved_before ? bytes : reserved_after - reserved_before);
    refund(device, counted(device) ? charged_bytes : 0);
    return answer;
}

/* The allocation is charged as if the pool had no chunk to reuse. If it had one, the charge is given back. */
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

/* A device was reset: forget pools without chunks. One that still exists is added again at its next use. */
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

/* With the mutex held: read each pool's used bytes before a call that frees a chunk. */
static void read_used(uint64_t used_bytes_before[POOLS])
{
    for (unsigned index = 0; index < POOLS && pools[index] != NULL; index++)
        used_bytes_before[index] = used_bytes(pools[index]);
}

/* With the mutex held: the pool whose used bytes are fewer than before; NULL: none. */
static TYPE(memoryPool) pool_that_shrank(const uint64_t used_bytes_before[POOLS])
{
    unsigned index = 0;
    while (index < POOLS && pools[index] != NULL && used_bytes(pools[index]) >= used_bytes_before[index])
        index++;
    return index < POOLS ? pools[index] : NULL;
}

/* Keep a chunk with another kind and owner. */
static void keep_as(uint32_t kind, struct entry chunk, void *owner)
{
    chunk.kind = kind;
    chunk.owner = owner;
    keep_entry(&chunk);
}

/* Whether a pool keeps this freed chunk, and no other allocation has its address. A second free of such a chunk is not
 * passed on to the runtime. AMD's runtime 5.2.3 returns OK, and frees the chunk on the card though the pool goes on to
 * have it. Then it ends by SIGSEGV when the chunk is reused or trimmed, and the limiter trims at the limit. By its
 * source (hip_mempool.cpp, 2026) version 7 does the same. */
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

/* The mutex also guards whether a chunk is reused. AMD's runtime 5.2.3 searches the address in one pool after the
 * other, and may free the chunk into a pool that had another chunk at that address, freed at once, which counts as used
 * for ever. So the pool whose used bytes shrank is the receiver. */
result_t pool_release(result_t (*real)(pointer_t, stream_t), pointer_t pointer, stream_t stream)
{
    struct entry chunk;
    uint64_t used_bytes_before[POOLS];
    change_begins();
    read_used(used_bytes_before);
    result_t answer = real(pointer, stream);
    if (answer == RESULT_OK && table_take(HELD_CHUNK, (uintptr_t)pointer, &chunk)) {
        TYPE(memoryPool) receiver = pool_that_shrank(used_bytes_before);
        keep_as(HELD_FREED, chunk,
                outside_free_count > 0                                        ? (void *)&uncertain_tag
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

/* With the mutex held: a chunk was freed, unless it is reused by now. `is_certain`: no other call changed pools. */
static void settle_freed(pointer_t pointer, const uint64_t used_bytes_before[POOLS], bool is_certain)
{
    struct entry chunk;
    TYPE(memoryPool) receiver = is_certain ? pool_that_shrank(used_bytes_before) : NULL;
    if (!table_take_match(is_leaving, pointer, &chunk))
        return;
    if (is_certain && receiver == NULL && !FAULT(pool_loss_unnoticed))
        give_back(&chunk);
    else
        keep_as(FAULT_VALUE(freed_chunks_as_used, HELD_FREED, HELD_CHUNK), chunk,
                is_certain ? receiver : (void *)&uncertain_tag);
}

/* A free that is being made outside of the mutex: its chunk, and the state when it began. */
struct departure {
    struct entry chunk;
    uint64_t used_bytes_before[POOLS], change_count;
    bool is_alone;
};

/* Begin such a free. The chunk is marked as leaving, for it may be reused before the call returns. False: the pointer
 * is no chunk in use. */
static bool begin_departure(pointer_t pointer, struct departure *departure)
{
    pthread_mutex_lock(&pools_mutex);
    bool is_chunk = table_take(HELD_CHUNK, (uintptr_t)pointer, &departure->chunk);
    if (is_chunk) {
        keep_as(HELD_FREED, departure->chunk, &leaving_tag);
        departure->is_alone = outside_free_count++ == 0;
        departure->change_count = ++change_count;
        read_used(departure->used_bytes_before);
    }
    pthread_mutex_unlock(&pools_mutex);
    return is_chunk;
}

/* In AMD's runtime 5.2.3 hipFree returns a pool's chunk to the card, and the pool counts it as used for ever. If a pool
 * keeps the chunk instead, its used bytes shrink. The call waits for the device, so the mutex is not held. */
result_t pool_release_at_once(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct departure departure;
    struct entry marked_chunk;
    if (!begin_departure(pointer, &departure))
        return real(pointer);
    result_t answer = real(pointer);
    change_begins();
    if (answer == RESULT_OK)
        settle_freed(pointer, departure.used_bytes_before,
                     departure.is_alone && change_count == departure.change_count);
    else if (table_take_match(is_leaving, pointer, &marked_chunk))
        keep_as(HELD_CHUNK, departure.chunk, departure.chunk.owner);
    outside_free_count--;
    change_ends();
    return answer;
}

/* Under the mutex: a trim while another thread allocates would make the pool's growth look too small. */
result_t trim_pool(result_t (*real)(TYPE(memoryPool), size_t), TYPE(memoryPool) pool, size_t keep_bytes)
{
    pthread_mutex_lock(&pools_mutex);
    result_t answer = real(pool, keep_bytes);
    pthread_mutex_unlock(&pools_mutex);
    pools_settle(DEVICE_NONE);
    return answer;
}

/* A destroyed pool must not be a device's current pool any more. */
static void leave_device(TYPE(memoryPool) pool, int ordinal)
{
    TYPE(memoryPool) current_pool;
    if (DRIVER(DeviceGetMemPool)(&current_pool, ordinal) == RESULT_OK && current_pool == pool &&
        DRIVER(DeviceGetDefaultMemPool)(&current_pool, ordinal) == RESULT_OK)
        DRIVER(DeviceSetMemPool)(ordinal, current_pool);
}

/* With the mutex held: whether a pool that the program destroys has chunks, and so stays. Otherwise it is forgotten. */
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

/* No pool of this API is exported. */
uint64_t pools_idle_bytes(int device, bool only_exported)
{
    (void)device, (void)only_exported;
    return 0;
}

void pools_stream_ended(stream_t stream)
{
    (void)stream;
}
