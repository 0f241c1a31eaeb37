/* Stream-ordered memory, and that of graphs, is of pools: what is idle in them is used before anything is charged. */
#include "pool.h"

#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "pools.h"

/* A pool made by the program is known; any other is the default pool of some device. */
static int device_of_pool(CUmemoryPool handle)
{
    int device, count = 0;
    CUmemoryPool own;
    if (pool_known(handle, &device))
        return device;
    typeof(&cuDeviceGetDefaultMemPool) get = REAL(cuDeviceGetDefaultMemPool);
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice ordinal = 0; get != NULL && ordinal < count; ordinal++)
        if (get(&own, ordinal) == CUDA_SUCCESS && own == handle)
            return device_of(ordinal);
    return device_current();
}

static CUresult charge_pooled(struct pool *pool, uint64_t bytes)
{
    uint64_t idle = pool_take_idle(pool, bytes);
    CUresult refused = charge(pool_device(pool), bytes - idle);
    if (refused == CUDA_SUCCESS)
        pool_count_live(pool, bytes - idle);
    else
        pool_count_idle(pool, idle);
    return refused;
}

static CUresult settle_pooled(CUresult answer, struct pool *pool, CUdeviceptr *pointer, uint64_t bytes)
{
    struct entry previous, entry = {.kind = HELD_POOLED, .device = pool_device(pool), .bytes = bytes, .link = pool};
    if (answer != CUDA_SUCCESS) {
        pool_count_freed(pool, bytes);
        pools_settle(pool_device(pool));
        return answer;
    }
    entry.key = *pointer;
    if (table_put(&entry, &previous) && previous.kind != 0)
        pool_count_freed(previous.link, previous.bytes); /* it is gone, or the driver would not reuse its name */
    return answer;
}

CUresult charge_graphs(int device, uint64_t bytes)
{
    struct pool *pool = counted(device) ? pool_remember(POOL_OF_GRAPHS(device), device) : NULL;
    return pool == NULL ? charge(device, bytes) : charge_pooled(pool, bytes);
}

void refund_graphs(int device, uint64_t bytes)
{
    struct pool *pool = counted(device) ? pool_remember(POOL_OF_GRAPHS(device), device) : NULL;
    if (pool != NULL)
        pool_count_freed(pool, bytes);
    pools_empty(device);
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
        struct pool *of = pool_remember(handle, device);                                                               \
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
        pool_remember(*pool, properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                 ? device_of(properties->location.id)
                                 : DEVICE_NONE);
    return answer;
}

CUresult destroy_pool(CUresult (*real)(CUmemoryPool), CUmemoryPool handle)
{
    struct pool *pool = pool_forget(handle);
    CUresult answer = real(handle);
    if (pool != NULL && answer == CUDA_SUCCESS)
        pool_destroyed(pool);
    else if (pool != NULL)
        pool_stands(pool, handle);
    return answer;
}
