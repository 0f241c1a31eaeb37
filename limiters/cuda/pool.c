/* Stream-ordered memory: pools are charged by what they reserve (pools.h). */
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

/* The driver answered. What a pool took beyond the limit in doing so goes back, as does the allocation. */
static CUresult settle_pooled(CUresult answer, struct growth *growth, const CUdeviceptr *pointer, CUstream stream,
                              int device)
{
    if (pool_grown(growth) || answer != CUDA_SUCCESS)
        return answer;
    REAL(cuMemFreeAsync)(*pointer, stream);
    pools_used(device, stream);
    more_room(device, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A capture only notes the allocation; the graph is charged when it is instantiated. */
#define ALLOCATE_ORDERED(device_, handle, stream, call)                                                                \
    do {                                                                                                               \
        if (stream_capturing(stream))                                                                                  \
            return call;                                                                                               \
        int device = device_;                                                                                          \
        CUresult refused = charge(device, 0);                                                                          \
        if (refused != CUDA_SUCCESS || !counted(device))                                                               \
            return refused != CUDA_SUCCESS ? refused : call;                                                           \
        struct pool *of = pool_remember(handle, device);                                                               \
        struct growth growth;                                                                                          \
        if (of == NULL)                                                                                                \
            return CUDA_ERROR_NOT_SUPPORTED;                                                                           \
        refused = pool_grow(&growth, of, bytes, 0, stream);                                                            \
        if (refused != CUDA_SUCCESS)                                                                                   \
            return refused;                                                                                            \
        CUresult answer = settle_pooled(call, &growth, pointer, stream, device);                                       \
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

/* Managed memory has no place of its own: it is counted where the program works. */
CUresult create_pool(CUresult (*real)(CUmemoryPool *, const CUmemPoolProps *), CUmemoryPool *pool,
                     const CUmemPoolProps *properties)
{
    CUresult answer = real(pool, properties);
    if (answer != CUDA_SUCCESS)
        return answer;
    int device = DEVICE_NONE;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        device = device_of(properties->location.id);
    else if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        device = device_current();
    if (counted(device))
        pool_remember(*pool, device);
    return answer;
}

/* Destroyed, a pool would not say any more what it holds, and what lives in it lives on. So it is destroyed when that
 * is gone; the program cannot tell. */
CUresult destroy_pool(CUresult (*real)(CUmemoryPool), CUmemoryPool handle)
{
    int device;
    CUmemoryPool fallback;
    if (!pool_known(handle, &device))
        return real(handle);
    if (current_pool(device) == handle &&
        REAL(cuDeviceGetDefaultMemPool)(&fallback, ordinal_of(device)) == CUDA_SUCCESS)
        REAL(cuDeviceSetMemPool)(ordinal_of(device), fallback);
    pool_destroy(pool_remember(handle, device));
    return CUDA_SUCCESS;
}
