/* What pools reserve for next to nothing. */
#include "memory.h"

static CUmemoryPool new_pool(size_t most)
{
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .maxSize = most};
    return CU(cuMemPoolCreate)(&pool, &properties) == CUDA_SUCCESS ? pool : NULL;
}

static void keep_all(CUmemoryPool pool)
{
    uint64_t threshold = UINT64_MAX;
    CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
}

static void a_byte_each(size_t most)
{
    CUdeviceptr pointer;
    open_card();
    for (unsigned i = 0; i < times(32 * MIB); i++) {
        CUmemoryPool pool = new_pool(most);
        if (pool != NULL)
            CU(cuMemAllocFromPoolAsync)(&pointer, 1, pool, NULL);
    }
}

PART(own_pools, "a byte of each pool")
{
    a_byte_each(0);
}

PART(small_pools, "a byte of pools of 2 MiB at most")
{
    a_byte_each(BLOCK);
}

PART(current_pools, "a byte of each current pool")
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    open_card();
    for (unsigned i = 0; i < times(32 * MIB); i++)
        if ((pool = new_pool(0)) != NULL && CU(cuDeviceSetMemPool)(0, pool) == CUDA_SUCCESS)
            CU(cuMemAllocAsync)(&pointer, 1, NULL);
}

/* Chunks of the default pool that a byte keeps, where what lay beside it is freed. */
PART(default_pool, "a byte of each chunk of the default pool")
{
    CUmemoryPool pool;
    CUdeviceptr large[8], byte;
    unsigned count = 0;
    open_card();
    must((int)CU(cuDeviceGetDefaultMemPool)(&pool, 0), "cuDeviceGetDefaultMemPool");
    keep_all(pool);
    while (count < 8 && CU(cuMemAllocAsync)(&large[count], 32 * MIB - 4096, NULL) == CUDA_SUCCESS &&
           CU(cuMemAllocAsync)(&byte, 1, NULL) == CUDA_SUCCESS)
        count++;
    while (count > 0)
        CU(cuMemFreeAsync)(large[--count], NULL);
    cu.synchronize();
    take_memory();
}

/* Freed, kept by the pool for later, and the pool destroyed. */
PART(kept_and_destroyed, "pools destroyed with what they keep")
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    open_card();
    for (unsigned i = 0; i < times(32 * MIB); i++) {
        if ((pool = new_pool(0)) == NULL)
            continue;
        keep_all(pool);
        if (CU(cuMemAllocFromPoolAsync)(&pointer, 24 * MIB, pool, NULL) == CUDA_SUCCESS && i % 2 == 0)
            CU(cuMemFreeAsync)(pointer, NULL);
        CU(cuMemPoolDestroy)(pool);
    }
}

int main(void)
{
    run_parts();
}
