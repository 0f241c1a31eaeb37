/* Memory pools, and allocation in stream order from them. */
#include "driver.h"

#include <stdlib.h>

struct pool *pool_new(struct device *device, uint64_t threshold)
{
    struct pool *pool = object_new(OBJECT_POOL);
    pool->device = device;
    pool->threshold_bytes = threshold;
    pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->reuse_attributes[0] = pool->reuse_attributes[1] = pool->reuse_attributes[2] = 1;
    return pool;
}

static bool is_managed(const struct pool *pool)
{
    return pool->props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

static bool pool_charge(struct pool *pool, uint64_t bytes)
{
    struct account *account = pool->device->account;
    if (pool->is_shared)
        return engine_share_resize(account, pool->share_number, pool->reserved_bytes + bytes);
    return is_managed(pool) ? engine_charge_managed(account, bytes) : engine_charge(account, bytes);
}

static void pool_release(struct pool *pool, uint64_t bytes)
{
    struct account *account = pool->device->account;
    if (pool->is_shared)
        engine_share_resize(account, pool->share_number, pool->reserved_bytes - bytes);
    else if (is_managed(pool))
        engine_release_managed(account, bytes);
    else
        engine_release(account, bytes);
}

struct departure { /* memory freed in stream order, which the card holds until the stream reaches that point */
    const struct context *context;
    struct device *device;
    struct position position;
    uint64_t stream_number; /* the stream may be destroyed meanwhile */
    struct pool *pool;
    uint64_t bytes;     /* of the pool's memory */
    struct piece piece; /* memory without a pool */
    bool is_stream_destroyed;
    struct departure *next;
};
static struct departure *departures; /* under driver.lock */

static void depart_at(const struct stream *stream, const struct departure *template)
{
    struct departure *departure = malloc(sizeof *departure);
    *departure = *template;
    departure->context = stream->context;
    departure->device = stream->context->device;
    departure->position = stream->last_position;
    departure->stream_number = stream->object.number;
    departure->next = departures;
    departures = departure;
}

/* Memory without a pool that was freed in stream order returns to an H100 when the program next waits for the
 * stream, an event or the context, even if the stream has passed the free before (driver 580.159.04, 2026-11-23). If
 * the stream is destroyed first, the free is assumed to need a wait for the context: an H100 then held one block
 * more than waits for streams explain (2026-11-25). */
void depart(const struct stream *stream, const struct piece *piece)
{
    if (!stream)
        piece_give(piece);
    else
        depart_at(stream, &(struct departure){.piece = *piece});
}

void departures_alone(const struct stream *stream)
{
    for (struct departure *departure = departures; departure; departure = departure->next)
        departure->is_stream_destroyed = departure->is_stream_destroyed ||
                                         (!departure->pool && departure->stream_number == stream->object.number);
}

void pool_free(struct pool *pool)
{
    if (pool->is_imported)
        engine_share_close(pool->device->account, pool->share_number);
    else if (pool->is_shared)
        engine_unshare(pool->device->account, pool->share_number);
    object_free(pool);
}

static void pool_trim(struct pool *pool, uint64_t keep_bytes)
{
    uint64_t held_bytes = pool->used_bytes + pool->leaving_bytes;
    if (keep_bytes < held_bytes)
        keep_bytes = round_up(held_bytes, CHUNK);
    if (pool->reserved_bytes > keep_bytes) {
        pool_release(pool, pool->reserved_bytes - keep_bytes);
        pool->reserved_bytes = keep_bytes;
    }
    if (pool->is_destroyed && !pool->reserved_bytes)
        pool_free(pool);
}

void pool_give(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
    pool->used_bytes -= bytes;
    if (stream && !reached(stream->context->device, stream->last_position)) {
        pool->leaving_bytes += bytes;
        depart_at(stream, &(struct departure){.pool = pool, .bytes = bytes});
    } else if (pool->is_destroyed) {
        pool_trim(pool, 0);
    }
}

static bool is_free(const struct departure *departure, const struct context *ending, enum waited waited)
{
    const struct block *block = departure->piece.block;
    return (ending && (departure->context == ending || (block && block->context == ending))) ||
           (departure->pool && !departure->pool->device->context_count) ||
           ((departure->pool || waited > departure->is_stream_destroyed) &&
            reached(departure->device, departure->position));
}

static void settle_after(const struct context *ending, enum waited waited)
{
    for (struct departure **link = &departures, *departure; (departure = *link);) {
        if (!is_free(departure, ending, waited)) {
            link = &departure->next;
            continue;
        }
        *link = departure->next;
        if (departure->pool) {
            departure->pool->leaving_bytes -= departure->bytes;
            if (departure->pool->is_destroyed)
                pool_trim(departure->pool, 0);
        } else {
            piece_give(&departure->piece);
        }
        free(departure);
    }
}

void settle(const struct context *ending)
{
    settle_after(ending, FOR_NOTHING);
}

/* Bytes that this stream freed, and that its next allocation may reuse. No other stream may before the free is
 * reached. */
static uint64_t own_departures(const struct pool *pool, const struct stream *stream, uint64_t max_bytes)
{
    uint64_t own_bytes = 0;
    for (const struct departure *departure = departures; departure; departure = departure->next)
        if (departure->pool == pool && departure->stream_number == stream->object.number)
            own_bytes += departure->bytes;
    return own_bytes < max_bytes ? own_bytes : max_bytes;
}

static void reuse(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
    pool->leaving_bytes -= bytes;
    for (struct departure *departure = departures; departure && bytes; departure = departure->next) {
        uint64_t part_bytes = departure->bytes < bytes ? departure->bytes : bytes;
        if (departure->pool == pool && departure->stream_number == stream->object.number) {
            departure->bytes -= part_bytes;
            bytes -= part_bytes;
        }
    }
}

static bool reserve(struct pool *pool, uint64_t bytes)
{
    uint64_t growth_bytes = round_up(bytes, CHUNK) - pool->reserved_bytes;
    if (!pool_charge(pool, growth_bytes)) {
        growth_bytes = bytes - pool->reserved_bytes;
        if (!pool_charge(pool, growth_bytes))
            return false;
    }
    pool->reserved_bytes += growth_bytes;
    pool->peak_reserved_bytes = pool->reserved_bytes > pool->peak_reserved_bytes ? pool->reserved_bytes
                                                                                 : pool->peak_reserved_bytes;
    return true;
}

bool pool_take(struct pool *pool, const struct stream *stream, uint64_t bytes)
{
    uint64_t own_bytes = own_departures(pool, stream, bytes),
             held_bytes = pool->used_bytes + pool->leaving_bytes + bytes - own_bytes;
    if (pool->props.maxSize && pool->used_bytes + bytes > pool->props.maxSize)
        return false;
    if (held_bytes > pool->reserved_bytes && !reserve(pool, held_bytes))
        return false;
    reuse(pool, stream, own_bytes);
    pool->used_bytes += bytes;
    pool->peak_used_bytes = pool->used_bytes > pool->peak_used_bytes ? pool->used_bytes : pool->peak_used_bytes;
    return true;
}

void pools_settle(struct device *device, enum waited waited)
{
    settle_after(NULL, waited);
    for (struct pool *pool = NULL; (pool = object_next(pool, OBJECT_POOL));)
        if (pool->device == device)
            pool_trim(pool, pool->threshold_bytes);
}

struct pool *pool_find(CUmemoryPool handle)
{
    struct pool *pool = object_find(handle, OBJECT_POOL);
    return pool && !pool->is_destroyed ? pool : NULL;
}

static CUresult allocate_in_order(CUdeviceptr *pointer, size_t size, CUmemoryPool pool_handle, CUstream handle)
{
    LOCKED;
    struct stream *stream = stream_find(handle);
    if (!stream)
        return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    struct pool *pool = pool_handle ? pool_find(pool_handle) : stream->context->device->current_pool;
    if (!pool || pool->is_imported || !pointer || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return captured_alloc(stream, pool, size, pointer);
    struct memory *memory;
    CHECK(
        memory_new(&(struct memory){.context = stream->context, .size_bytes = size, .kind = MEMORY_POOL, .pool = pool},
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

/* A pool of managed memory has no location, or a preferred one. */
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
    struct engine_share share_handle = {0};
    if (props->handleTypes && !engine_share(device->account, 0, 0, false, &share_handle))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct pool *pool = pool_new(device, 0);
    pool->props = *props;
    pool->is_shared = props->handleTypes != 0;
    pool->share_number = share_handle.number;
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
    if (pool->is_imported) {
        pool_free(pool);
        return CUDA_SUCCESS;
    }
    pool->is_destroyed = true;
    pool_trim(pool, 0);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
    WITH_POOL(pool, handle);
    settle(NULL);
    pool_trim(pool, keep_bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    WITH_POOL(pool, handle);
    uint64_t *wide = value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse_attributes[attribute - 1];
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *wide = pool->threshold_bytes; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *wide = pool->reserved_bytes; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *wide = pool->peak_reserved_bytes; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *wide = pool->used_bytes; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *wide = pool->peak_used_bytes; break;
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
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse_attributes[attribute - 1] = *(int *)value;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold_bytes = *(uint64_t *)value; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(uint64_t *)value)
            return CUDA_ERROR_INVALID_VALUE;
        *(attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? &pool->peak_used_bytes : &pool->peak_reserved_bytes) = 0;
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
    *(uint64_t *)value = (uint64_t[]){pool->used_bytes, pool->peak_used_bytes, pool->reserved_bytes,
                                      pool->peak_reserved_bytes}[attribute];
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
