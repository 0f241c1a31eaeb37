/* The calls of stream-ordered memory, whose pools are charged by what they reserve (pools.h). */
#include "arguments.h"
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "pools.h"
#include "spill.h"

#include "../core/fault.h"

/* A pool's device. One that the program made is known; any other is a device's default pool, or that of managed memory.
 */
static int device_of_pool(TYPE(memoryPool) handle, enum pool_memory *memory)
{
    int device, ordinal_count = 0;
    TYPE(memoryPool) default_pool;
    if (pool_known(handle, &device))
        return device;
    typeof(&FUNCTION(DeviceGetDefaultMemPool)) get_default = DRIVER(DeviceGetDefaultMemPool);
    DRIVER(DeviceGetCount)(&ordinal_count);
    for (device_t ordinal = 0; get_default != NULL && ordinal < ordinal_count; ordinal++)
        if (get_default(&default_pool, ordinal) == RESULT_OK && default_pool == handle)
            return device_of(ordinal);
    *memory = POOL_OF_MANAGED;
    return device_current();
}

/* After the driver's answer. If the pool grew beyond the limit, the allocation is freed and the growth reclaimed. */
static result_t settle_pooled(result_t answer, struct growth *growth, const pointer_t *pointer, stream_t stream,
                              int device)
{
    if (pool_grown(growth) || answer != RESULT_OK)
        return answer;
    DRIVER(MemFreeAsync)(*pointer, stream);
    pools_used(device, stream);
    reclaim(device, 0);
    return ERROR(OUT_OF_MEMORY);
}

/* A capture only records the allocation; the graph is charged when it is instantiated. The capture may have ended when
 * the driver's call is made, so the pool's growth is charged in any case. A capture cannot allocate managed memory. */
#define ALLOCATE_ORDERED(device_, pool_, stream, call)                                                                 \
    do {                                                                                                               \
        struct pool *source_pool = NULL;                                                                               \
        if (FAULT(captured_pools_uncharged) && stream_is_capturing(stream)) {                                          \
            FAULT_PAUSE(captured_pools_uncharged);                                                                     \
            return call;                                                                                               \
        }                                                                                                              \
        int device = device_;                                                                                          \
        result_t charge_result = charge(device, 0);                                                                    \
        if (charge_result != RESULT_OK || !counted(device))                                                            \
            return charge_result != RESULT_OK ? charge_result : call;                                                  \
        struct growth growth;                                                                                          \
        if ((source_pool = pool_) == NULL)                                                                             \
            return ERROR(NOT_SUPPORTED);                                                                               \
        charge_result = pool_grow(&growth, source_pool, stream_is_capturing(stream) ? 0 : bytes, 0, stream);           \
        if (charge_result != RESULT_OK)                                                                                \
            return charge_result;                                                                                      \
        result_t answer = settle_pooled(call, &growth, pointer, stream, device);                                       \
        return spills(answer, device) && !stream_is_capturing(stream) ? allocate_spilled(pointer, device, bytes)       \
                                                                      : answer;                                        \
    } while (0)

/* The current pool is passed to the driver explicitly, since the program may change it meanwhile. */
result_t allocate_async(result_t (*real)(pointer_t *, size_t, stream_t), stream_t null_stream, pointer_t *pointer,
                        size_t bytes, stream_t stream)
{
    stream_t actual_stream = stream == NULL ? null_stream : stream;
    ALLOCATE_ORDERED(device_of_stream(actual_stream), pool_current(device), actual_stream,
                     source_pool == NULL || FAULT(pool_unnamed)
                         ? real(pointer, bytes, stream)
                         : DRIVER(MemAllocFromPoolAsync)(pointer, bytes, pool_name(source_pool), actual_stream));
}

result_t allocate_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), stream_t null_stream,
                            pointer_t *pointer, size_t bytes, TYPE(memoryPool) pool, stream_t stream)
{
    stream_t actual_stream = stream == NULL ? null_stream : stream;
    enum pool_memory memory = POOL_OF_DEVICE;
    ALLOCATE_ORDERED(device_of_pool(pool, &memory), pool_remember(pool, device, memory), actual_stream,
                     real(pointer, bytes, pool, stream));
}

/* A pool of managed memory has no device: it is charged to the current one. */
result_t create_pool(result_t (*real)(TYPE(memoryPool) *, const TYPE(memPoolProps) *), TYPE(memoryPool) *pool,
                     const TYPE(memPoolProps) *properties)
{
    COPY_ARGUMENT(properties);
    int device = DEVICE_NONE;
    bool is_managed = properties != NULL && properties->allocType == VALUE(MEM_ALLOCATION_TYPE_MANAGED);
    if (properties != NULL && properties->location.type == VALUE(MEM_LOCATION_TYPE_DEVICE))
        device = device_of(properties->location.id);
    else if (is_managed)
        device = device_current();
    result_t answer = device == DEVICE_FOREIGN ? ERROR(OUT_OF_MEMORY) : real(pool, properties);
    if (answer == RESULT_OK && counted(device))
        pool_countable(*pool, device, is_managed ? POOL_OF_MANAGED : POOL_OF_DEVICE);
    return answer;
}

/* The driver does not report a destroyed pool's size any more, though its allocations live on. So the driver's pool is
 * destroyed when they are freed; the program cannot tell. */
result_t destroy_pool(result_t (*real)(TYPE(memoryPool)), TYPE(memoryPool) handle)
{
    int device;
    TYPE(memoryPool) current_pool, default_pool;
    if (!pool_known(handle, &device))
        FREE(HELD_IMPORTED, handle, real(handle));
    if (DRIVER(DeviceGetMemPool)(&current_pool, ordinal_of(device)) == RESULT_OK && current_pool == handle &&
        DRIVER(DeviceGetDefaultMemPool)(&default_pool, ordinal_of(device)) == RESULT_OK)
        DRIVER(DeviceSetMemPool)(ordinal_of(device), default_pool);
    pool_destroy(pool_remember(handle, device, POOL_OF_DEVICE));
    return RESULT_OK;
}

result_t export_pool(result_t (*real)(void *, TYPE(memoryPool), TYPE(memAllocationHandleType), unsigned long long),
                     void *descriptor, TYPE(memoryPool) handle, TYPE(memAllocationHandleType) type,
                     unsigned long long flags)
{
    int device;
    result_t answer = real(descriptor, handle, type, flags);
    if (answer == RESULT_OK && pool_known(handle, &device))
        pool_exported(pool_remember(handle, device, POOL_OF_DEVICE));
    return answer;
}
