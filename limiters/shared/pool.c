/* Stream-ordered memory: pools are charged by what they reserve (pools.h). */
#include "arguments.h"
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "pools.h"

#include "../core/fault.h"

/* A pool made by the program is known; any other is the default pool of some device, or of managed memory. */
static int device_of_pool(TYPE(memoryPool) handle, enum pool_memory *memory)
{
    int device, count = 0;
    TYPE(memoryPool) own;
    if (pool_known(handle, &device))
        return device;
    typeof(&FUNCTION(DeviceGetDefaultMemPool)) get = DRIVER(DeviceGetDefaultMemPool);
    DRIVER(DeviceGetCount)(&count);
    for (device_t ordinal = 0; get != NULL && ordinal < count; ordinal++)
        if (get(&own, ordinal) == RESULT_OK && own == handle)
            return device_of(ordinal);
    *memory = POOL_OF_MANAGED;
    return device_current();
}

/* The driver answered. What a pool took beyond the limit in doing so goes back, as does the allocation. */
static result_t settle_pooled(result_t answer, struct growth *growth, const pointer_t *pointer, stream_t stream,
                              int device)
{
    if (pool_grown(growth) || answer != RESULT_OK)
        return answer;
    DRIVER(MemFreeAsync)(*pointer, stream);
    pools_used(device, stream);
    more_room(device, 0);
    return ERROR(OUT_OF_MEMORY);
}

/* A capture only notes the allocation; the graph is charged when it is instantiated. It may have ended before the
 * driver looks: so what its pool took is charged all the same. Managed memory cannot be had in a capture. */
#define ALLOCATE_ORDERED(device_, pool_, stream, call)                                                                 \
    do {                                                                                                               \
        struct pool *of = NULL;                                                                                        \
        if (FAULT(captured_pools_uncharged) && stream_capturing(stream)) {                                             \
            FAULT_PAUSE(captured_pools_uncharged);                                                                     \
            return call;                                                                                               \
        }                                                                                                              \
        int device = device_;                                                                                          \
        result_t refused = charge(device, 0);                                                                          \
        if (refused != RESULT_OK || !counted(device))                                                                  \
            return refused != RESULT_OK ? refused : call;                                                              \
        struct growth growth;                                                                                          \
        if ((of = pool_) == NULL)                                                                                      \
            return ERROR(NOT_SUPPORTED);                                                                               \
        refused = pool_grow(&growth, of, stream_capturing(stream) ? 0 : bytes, 0, stream);                             \
        if (refused != RESULT_OK)                                                                                      \
            return refused;                                                                                            \
        result_t answer = settle_pooled(call, &growth, pointer, stream, device);                                       \
        return spills(answer, device) && !stream_capturing(stream) ? allocate_spilled(pointer, device, bytes)          \
                                                                   : answer;                                           \
    } while (0)

/* The device's pool is named to the driver, since the program may make another one that meanwhile. */
result_t allocate_async(result_t (*real)(pointer_t *, size_t, stream_t), stream_t none, pointer_t *pointer,
                        size_t bytes, stream_t stream)
{
    stream_t meant = stream == NULL ? none : stream;
    ALLOCATE_ORDERED(device_of_stream(meant), pool_current(device), meant,
                     of == NULL || FAULT(pool_unnamed)
                         ? real(pointer, bytes, stream)
                         : DRIVER(MemAllocFromPoolAsync)(pointer, bytes, pool_name(of), meant));
}

result_t allocate_from_pool(result_t (*real)(pointer_t *, size_t, TYPE(memoryPool), stream_t), stream_t none,
                            pointer_t *pointer, size_t bytes, TYPE(memoryPool) pool, stream_t stream)
{
    stream_t meant = stream == NULL ? none : stream;
    enum pool_memory memory = POOL_OF_DEVICE;
    ALLOCATE_ORDERED(device_of_pool(pool, &memory), pool_remember(pool, device, memory), meant,
                     real(pointer, bytes, pool, stream));
}

/* Managed memory has no place of its own: it is counted where the program works. */
result_t create_pool(result_t (*real)(TYPE(memoryPool) *, const TYPE(memPoolProps) *), TYPE(memoryPool) *pool,
                     const TYPE(memPoolProps) *properties)
{
    AS_IT_IS(properties);
    int device = DEVICE_NONE;
    bool managed = properties != NULL && properties->allocType == VALUE(MEM_ALLOCATION_TYPE_MANAGED);
    if (properties != NULL && properties->location.type == VALUE(MEM_LOCATION_TYPE_DEVICE))
        device = device_of(properties->location.id);
    else if (managed)
        device = device_current();
    result_t answer = device == DEVICE_FOREIGN ? ERROR(OUT_OF_MEMORY) : real(pool, properties);
    if (answer == RESULT_OK && counted(device))
        pool_countable(*pool, device, managed ? POOL_OF_MANAGED : POOL_OF_DEVICE);
    return answer;
}

/* Destroyed, a pool would not say any more what it holds, and what lives in it lives on. So it is destroyed when that
 * is gone; the program cannot tell. */
result_t destroy_pool(result_t (*real)(TYPE(memoryPool)), TYPE(memoryPool) handle)
{
    int device;
    TYPE(memoryPool) current, fallback;
    if (!pool_known(handle, &device))
        FREE(HELD_IMPORTED, handle, real(handle));
    if (DRIVER(DeviceGetMemPool)(&current, ordinal_of(device)) == RESULT_OK && current == handle &&
        DRIVER(DeviceGetDefaultMemPool)(&fallback, ordinal_of(device)) == RESULT_OK)
        DRIVER(DeviceSetMemPool)(ordinal_of(device), fallback);
    pool_destroy(pool_remember(handle, device, POOL_OF_DEVICE));
    return RESULT_OK;
}

result_t export_pool(result_t (*real)(void *, TYPE(memoryPool), TYPE(memAllocationHandleType), unsigned long long),
                     void *file, TYPE(memoryPool) handle, TYPE(memAllocationHandleType) type, unsigned long long flags)
{
    int device;
    result_t answer = real(file, handle, type, flags);
    if (answer == RESULT_OK && pool_known(handle, &device))
        pool_exported(pool_remember(handle, device, POOL_OF_DEVICE));
    return answer;
}
