/* Memory pools, and allocation in stream order from them. */
#include "driver.h"

#include <stdlib.h>

struct pool *pool_new(struct device *device, uint64_t threshold)
{
    struct pool *pool = object_new(OBJECT_POOL);
    pool->device = device;
    pool->threshold = threshold;
    pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    return pool;
}

static bool is_managed(const struct pool *pool)
{
    return pool->props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

static bool pool_charge(struct pool *pool, uint64_t bytes)
{
    struct account *account = pool->device->account;
    if (pool->shared)
        return engine_share_resize(account, pool->share, pool->reserved + bytes);
    return is_managed(pool) ? engine_charge_managed(account, bytes) : engine_charge(account, bytes);
}

static void pool_release(struct pool *pool, uint64_t bytes)
{
    struct account *account = pool->device->account;
    if (pool->shared)
        engine_share_resize(account, pool->share, pool->reserved - bytes);
    else if (is_managed(pool))
        engine_release_managed(account, bytes);
    else
        engine_release(account, bytes);
}

struct departure { /* freed in the order of a stream that is not there yet: still the card's */
    const struct context *context;
    struct device *device;
    struct position at;
    uint64_t stream; /* its number; it may be destroyed meanwhile */
    struct pool *pool;
    uint64_t bytes;     /* of the pool */
    struct piece piece; /* of memory without a pool */
    bool alone;         /* its stream is destroyed */
    struct departure *next;
};
static struct departure *departures; /* under driver.lock */

static void depart_at(const struct stream *stream, const struct departure *what)
{
    struct departure *it = malloc(sizeof *it);
    *it = *what;
    it->context = stream->context;
    it->device = stream->context->device;
    it->at = stream->last;
    it->stream = stream->object.number;
    it->next = departures;
    departures = it;
}

/* An H100 has memory without a pool back when the program next waits for the stream, an event or the context, however
 * long the stream has passed it by then (driver 580.159.04, 2026-11-23). If the stream is destroyed before, it is taken
 * to need a wait for the context: an H100 held a block more then than such waits explain (2026-11-25). */
void depart(const struct stream *stream, const struct piece *piece)
{
    if (!stream)
        piece_give(piece);
    else
        depart_at(stream, &(struct departure){.piece = *piece});
}

void departures_alone(const struct stream *stream)
{
    for (struct departure *it = departures; it; it = it->next)
        it->alone = it->alone || (!it->pool && it->stream == stream->object.number);
}

void pool_free(struct pool *pool)
{
    if (pool->imported)
        engine_share_close(pool->device->account, pool->share);
    else if (pool->shared)
        engine_unshare(pool->device->account, pool->share);
    object_free(pool);
}

static void pool_trim(struct pool *pool, uint64_t keep)
{
    uint64_t held = pool->used + pool->leaving;
    if (keep < held)
        keep = round_up(held, CHUNK);
    if (pool->reserved > keep) {
        pool_release(pool, pool->reserved - keep);
        pool->reserved = keep;
    }
    if (pool->destroyed && !pool->reserved)
        pool_free(pool);
}

void pool_give(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
    pool->used -= bytes;
    if (stream && !reached(stream->context->device, stream->last)) {
        pool->leaving += bytes;
        depart_at(stream, &(struct departure){.pool = pool, .bytes = bytes});
    } else if (pool->destroyed) {
        pool_trim(pool, 0);
    }
}

static bool is_free(const struct departure *it, const struct context *ending, enum waited waited)
{
    const struct block *block = it->piece.block;
    return (ending && (it->context == ending || (block && block->context == ending))) ||
           (it->pool && !it->pool->device->contexts) ||
           ((it->pool || waited > it->alone) && reached(it->device, it->at));
}

static void settle_after(const struct context *ending, enum waited waited)
{
    for (struct departure **link = &departures, *it; (it = *link);) {
        if (!is_free(it, ending, waited)) {
            link = &it->next;
            continue;
        }
        *link = it->next;
        if (it->pool) {
            it->pool->leaving -= it->bytes;
            if (it->pool->destroyed)
                pool_trim(it->pool, 0);
        } else {
            piece_give(&it->piece);
        }
        free(it);
    }
}

void settle(const struct context *ending)
{
    settle_after(ending, FOR_NOTHING);
}

/* So many bytes of what the stream itself freed may be its next allocation's: nobody else's, before it is there. */
static uint64_t own_departures(const struct pool *pool, const struct stream *stream, uint64_t most)
{
    uint64_t own = 0;
    for (const struct departure *it = departures; it; it = it->next)
        if (it->pool == pool && it->stream == stream->object.number)
            own += it->bytes;
    return own < most ? own : most;
}

static void reuse(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
    pool->leaving -= bytes;
    for (struct departure *it = departures; it && bytes; it = it->next) {
        uint64_t part = it->bytes < bytes ? it->bytes : bytes;
        if (it->pool == pool && it->stream == stream->object.number) {
            it->bytes -= part;
            bytes -= part;
        }
    }
}

static bool reserve(struct pool *pool, uint64_t bytes)
{
    uint64_t more = round_up(bytes, CHUNK) - pool->reserved;
    if (!pool_charge(pool, more)) {
        more = bytes - pool->reserved;
        if (!pool_charge(pool, more))
            return false;
    }
    pool->reserved += more;
    pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    return true;
}

bool pool_take(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
    uint64_t own = own_departures(pool, stream, bytes), held = pool->used + pool->leaving + bytes - own;
    if (pool->props.maxSize && pool->used + bytes > pool->props.maxSize)
        return false;
    if (held > pool->reserved && !reserve(pool, held))
        return false;
    reuse(pool, stream, own);
    pool->used += bytes;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    return true;
}

void pools_settle(struct device *device, enum waited waited)
{
    settle_after(NULL, waited);
    for (struct pool *pool = NULL; (pool = object_next(pool, OBJECT_POOL));)
        if (pool->device == device)
            pool_trim(pool, pool->threshold);
}

struct pool *pool_find(CUmemoryPool handle)
{
    struct pool *pool = object_find(handle, OBJECT_POOL);
    return pool && !pool->destroyed ? pool : NULL;
}

static CUresult allocate_in_order(CUdeviceptr *pointer, size_t size, CUmemoryPool pool_handle, CUstream handle)
{
    LOCKED;
    struct stream *stream = stream_find(handle);
    if (!stream)
        return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    struct pool *pool = pool_handle ? pool_find(pool_handle) : stream->context->device->current_pool;
    if (!pool || pool->imported || !pointer || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return captured_alloc(stream, pool, size, pointer);
    struct memory *memory;
    CHECK(memory_new(&(struct memory){.context = stream->context, .size = size, .kind = MEMORY_POOL, .pool = pool},
                     stream, &memory));
    *pointer = memory->start;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return allocate_in_order(pointer, size, NULL, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    return pool ? allocate_in_order(pointer, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle)
{
    LOCKED;
    struct stream *stream = stream_find(handle);
    if (!stream)
        return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    struct memory *memory = memory_find(pointer);
    if (!memory || memory->start != pointer || memory->kind >= MEMORY_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, &(struct work){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = pointer});
}

#define WITH_POOL(name, handle)                                                                                        \
    LOCKED;                                                                                                            \
    struct pool *name = pool_find(handle);                                                                             \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_VALUE

/* A pool of managed memory has no place of its own, or one that says where it lies first. */
static struct device *device_of_pool(const CUmemPoolProps *props)
{
    struct context *context = current_context();
    if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return device_at(props->location.id);
    return props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && context ? context->device : NULL;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
    LOCKED;
    struct device *device = props ? device_of_pool(props) : NULL;
    if (!handle || !device ||
        (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    if ((props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
        (props->handleTypes && props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!device->account)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct engine_share share = {0};
    if (props->handleTypes && !engine_share(device->account, 0, 0, false, &share))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct pool *pool = pool_new(device, 0);
    pool->props = *props;
    pool->shared = props->handleTypes != 0;
    pool->share = share.number;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    WITH_POOL(pool, handle);
    if (pool == pool->device->default_pool || pool == pool->device->graph_pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->device->current_pool == pool)
        pool->device->current_pool = pool->device->default_pool;
    settle(NULL);
    if (pool->imported) {
        pool_free(pool);
        return CUDA_SUCCESS;
    }
    pool->destroyed = true;
    pool_trim(pool, 0);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    WITH_POOL(pool, handle);
    settle(NULL);
    pool_trim(pool, keep);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    WITH_POOL(pool, handle);
    uint64_t *wide = value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = pool->reuse[attribute - 1]; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *wide = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *wide = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *wide = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *wide = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *wide = pool->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    WITH_POOL(pool, handle);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse[attribute - 1] = *(int *)value; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *(uint64_t *)value; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(uint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        *(attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? &pool->used_high : &pool->reserved_high) = 0;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    WITH_POOL(pool, handle);
    (void)pool, (void)access, (void)count;
    return CUDA_SUCCESS;
}

static CUresult pool_of(CUmemoryPool *handle, CUdevice ordinal, bool current)
{
    LOCKED;
    struct device *device = device_at(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!device->account || !handle)
        return handle ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *handle = (CUmemoryPool)(current ? device->current_pool : device->default_pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *handle, CUdevice ordinal)
{
    return pool_of(handle, ordinal, false);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice ordinal)
{
    return pool_of(handle, ordinal, true);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle)
{
    WITH_POOL(pool, handle);
    if (pool->device != device_at(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    pool->device->current_pool = pool;
    return CUDA_SUCCESS;
}

static struct pool *graph_pool(CUdevice ordinal)
{
    struct device *device = device_at(ordinal);
    return device ? device->graph_pool : NULL;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    LOCKED;
    struct pool *pool = graph_pool(ordinal);
    if (!pool || !value || (unsigned)attribute > 3)
        return pool ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    *(uint64_t *)value = (uint64_t[]){pool->used, pool->used_high, pool->reserved, pool->reserved_high}[attribute];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    LOCKED;
    struct pool *pool = graph_pool(ordinal);
    if (!pool)
        return CUDA_ERROR_INVALID_DEVICE;
    settle(NULL);
    pool_trim(pool, 0);
    return CUDA_SUCCESS;
}
