/* Managed memory of pools, which has no place of its own, and comes to the card when it is used there. */
#include "memory.h"

#define TAKEN (16 * MIB)

/* Allocate, and have it all on the card. */
static void take(CUmemoryPool pool)
{
    CUdeviceptr pointer;
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUresult answer = pool != NULL ? CU(cuMemAllocFromPoolAsync)(&pointer, TAKEN, pool, NULL)
                                       : CU(cuMemAllocManaged)(&pointer, TAKEN, CU_MEM_ATTACH_GLOBAL);
        if (answer == CUDA_SUCCESS)
            cu.fill(pointer, 1, TAKEN);
    }
    cu.synchronize();
}

static void of_pool(CUmemLocation location)
{
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = location};
    open_card();
    if (CU(cuMemPoolCreate)(&pool, &properties) == CUDA_SUCCESS)
        take(pool);
}

PART(nowhere, "a managed pool of no place")
{
    of_pool((CUmemLocation){CU_MEM_LOCATION_TYPE_INVALID, 0}); /* CU_MEM_LOCATION_TYPE_NONE from 13.0 on */
}

PART(on_device, "a managed pool of the card")
{
    of_pool((CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, 0});
}

PART(on_host, "a managed pool of the host")
{
    of_pool((CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0});
}

PART(default_ones, "the default managed pools")
{
    static const CUmemLocation places[] = {{CU_MEM_LOCATION_TYPE_INVALID, 0}, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    open_card();
    for (unsigned i = 0; i < 2; i++) {
        CUmemoryPool pool = NULL;
        CUmemLocation place = places[i];
        if (CU(cuMemGetDefaultMemPool)(&pool, &place, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS)
            take(pool);
        if (CU(cuMemGetMemPool)(&pool, &place, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS)
            take(pool);
    }
}

PART(without_pool, "managed memory without a pool")
{
    open_card();
    take(NULL);
}

int main(void)
{
    run_parts();
}
