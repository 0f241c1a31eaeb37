/* Stream-ordered memory, and that of graphs. What a pool keeps of what was freed is not the card's again, so it stays
 * charged: the program's next allocations from the pool are made of it, and it is given back when the pool does.
 */
#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct pool {
    CUmemoryPool handle; /* GRAPHS, or NULL: destroyed, and here until the last of its memory is freed */
    int device;
    struct pool *next;
    uint64_t live; /* bytes that the program holds; charged */
    uint64_t idle; /* bytes that it freed and the pool may keep; charged as well */
};

/* Stands for the pool that a device has for its graphs, of which the driver tells no name. */
#define GRAPHS(device) ((CUmemoryPool)(uintptr_t)((device) + 1))

/* All pools that memory was taken of, and their counts. Held while pools are asked what they hold, so that none is
 * destroyed meanwhile; never while the ledger is, nor around a call that waits. */
static struct pool *pools;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static atomic_bool any; /* set with the first pool, never cleared */

bool pools_known(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

void pool_after_fork(void)
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

/* The pool of this name, which allocates on `device`; NULL: no memory to remember it with. */
static struct pool *remember(CUmemoryPool handle, int device)
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

/* A pool made by the program is known; any other is the default pool of some device. */
static int device_of_pool(CUmemoryPool handle)
{
    pthread_mutex_lock(&counting);
    struct pool *pool = known(handle);
    int device = pool == NULL ? DEVICE_NONE : pool->device, count = 0;
    pthread_mutex_unlock(&counting);
    CUmemoryPool own;
    if (pool != NULL)
        return device;
    typeof(&cuDeviceGetDefaultMemPool) get = REAL(cuDeviceGetDefaultMemPool);
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice ordinal = 0; get != NULL && ordinal < count; ordinal++)
        if (get(&own, ordinal) == CUDA_SUCCESS && own == handle)
            return device_of(ordinal);
    return device_current();
}

static void trim(const struct pool *pool)
{
    if (pool->handle == GRAPHS(pool->device))
        REAL(cuDeviceGraphMemTrim)(ordinal_of(pool->device));
    else
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
}

static uint64_t reserved_of(const struct pool *pool)
{
    uint64_t bytes;
    CUresult answer;
    if (pool->handle == GRAPHS(pool->device))
        answer = REAL(cuDeviceGetGraphMemAttribute)(ordinal_of(pool->device), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                    &bytes);
    else
        answer = REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    return answer == CUDA_SUCCESS ? bytes : 0; /* drivers before 11.3 do not say */
}

/* Give back what the pools of `device` do not keep any more, after asking them to keep nothing if so told; what they
 * keep none the less. What a pool reserves beyond what the program holds was freed before, or will be when its stream
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

void pools_trim(int device)
{
    /* What was freed in the order of a stream that is not there yet is worth waiting for, where that breaks nothing. */
    if (settle_idle(device, true) > 0 && !capturing() && REAL(cuCtxSynchronize)() == CUDA_SUCCESS)
        settle_idle(device, true);
}

/* ------------------------------------------------------------------------------------------------ taking and giving */

static uint64_t take_idle(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    uint64_t taken = pool->idle < bytes ? pool->idle : bytes;
    pool->idle -= taken;
    pool->live += taken;
    pthread_mutex_unlock(&counting);
    return taken;
}

/* Whoever frees the last of a destroyed pool frees the struct; its memory goes back to the card as it is freed. */
static void count_freed(struct pool *pool, uint64_t bytes)
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

static CUresult charge_pooled(struct pool *pool, uint64_t bytes)
{
    uint64_t idle = take_idle(pool, bytes);
    CUresult refused = charge(pool->device, bytes - idle);
    pthread_mutex_lock(&counting);
    if (refused == CUDA_SUCCESS) {
        pool->live += bytes - idle;
    } else {
        pool->live -= idle;
        pool->idle += idle;
    }
    pthread_mutex_unlock(&counting);
    return refused;
}

static CUresult settle_pooled(CUresult answer, struct pool *pool, CUdeviceptr *pointer, uint64_t bytes)
{
    struct entry previous, entry = {.kind = HELD_POOLED, .device = pool->device, .bytes = bytes, .link = pool};
    if (answer != CUDA_SUCCESS) {
        count_freed(pool, bytes);
        pools_settle(pool->device);
        return answer;
    }
    entry.key = *pointer;
    if (table_put(&entry, &previous) && previous.kind != 0)
        count_freed(previous.link, previous.bytes); /* it is gone, or the driver would not reuse its name */
    return answer;
}

CUresult settle_freed(CUresult answer, const struct entry *entry)
{
    struct entry previous;
    if (answer == CUDA_SUCCESS)
        count_freed(entry->link, entry->bytes);
    else
        table_put(entry, &previous);
    return answer;
}

CUresult charge_graphs(int device, uint64_t bytes)
{
    struct pool *pool = counted(device) ? remember(GRAPHS(device), device) : NULL;
    return pool == NULL ? charge(device, bytes) : charge_pooled(pool, bytes);
}

void refund_graphs(int device, uint64_t bytes)
{
    struct pool *pool = counted(device) ? remember(GRAPHS(device), device) : NULL;
    if (pool != NULL)
        count_freed(pool, bytes);
    settle_idle(device, true);
}

/* A capture only notes the allocation; the graph is charged when it is instantiated. */
#define ALLOCATE_ORDERED(device_, handle, stream, call)                                                                \
    do {                                                                                                               \
        if (stream_capturing(stream))                                                                                  \
            return call;                                                                                               \
        int device = device_;                                                                                          \
        if (!counted(device)) {                                                                                        \
            CUresult refused = charge(device, bytes);                                                                  \
            return refused != CUDA_SUCCESS ? refused : call;                                                           \
        }                                                                                                              \
        struct pool *of = remember(handle, device);                                                                    \
        CUresult refused = of == NULL ? CUDA_ERROR_OUT_OF_MEMORY : charge_pooled(of, bytes);                           \
        if (refused != CUDA_SUCCESS)                                                                                   \
            return refused;                                                                                            \
        CUresult answer = settle_pooled(call, of, pointer, bytes);                                                     \
        return spills(answer, device) ? allocate_spilled(pointer, device, bytes) : answer;                             \
    } while (0)

/* The pool that a device allocates from when none is named. */
static CUmemoryPool current_pool(int device)
{
    CUmemoryPool pool = NULL;
    return REAL(cuDeviceGetMemPool)(&pool, ordinal_of(device)) == CUDA_SUCCESS ? pool : NULL;
}

CUresult allocate_async(CUresult (*real)(CUdeviceptr *, size_t, CUstream), CUstream none, CUdeviceptr *pointer,
                        size_t bytes, CUstream stream)
{
    CUstream meant = stream == NULL ? none : stream;
    ALLOCATE_ORDERED(device_of_stream(meant), current_pool(device), meant, real(pointer, bytes, stream));
}

CUresult allocate_from_pool(CUresult (*real)(CUdeviceptr *, size_t, CUmemoryPool, CUstream), CUstream none,
                            CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    CUstream meant = stream == NULL ? none : stream;
    ALLOCATE_ORDERED(device_of_pool(pool), pool, meant, real(pointer, bytes, pool, stream));
}

CUresult create_pool(CUresult (*real)(CUmemoryPool *, const CUmemPoolProps *), CUmemoryPool *pool,
                     const CUmemPoolProps *properties)
{
    CUresult answer = real(pool, properties);
    if (answer == CUDA_SUCCESS)
        remember(*pool, properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(properties->location.id)
                                                                                 : DEVICE_NONE);
    return answer;
}

static struct pool *forget(CUmemoryPool handle)
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

CUresult destroy_pool(CUresult (*real)(CUmemoryPool), CUmemoryPool handle)
{
    struct pool *pool = forget(handle); /* before the driver can hand the name out again */
    CUresult answer = real(handle);
    if (pool == NULL)
        return answer;
    pthread_mutex_lock(&counting);
    uint64_t back = answer == CUDA_SUCCESS ? pool->idle : 0;
    bool last = answer == CUDA_SUCCESS && pool->live == 0;
    pool->idle -= back;
    if (answer != CUDA_SUCCESS) {
        pool->handle = handle;
        pool->next = pools;
        pools = pool;
    }
    pthread_mutex_unlock(&counting);
    refund(pool->device, back);
    if (last)
        free(pool);
    return answer;
}
