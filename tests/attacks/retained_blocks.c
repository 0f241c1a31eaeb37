/* Blocks that one thread takes a handle of while another unmaps them. */
#include "memory.h"

static CUdeviceptr address;
static _Atomic unsigned current, retained; /* retained: of which try the handle is */
static CUmemGenericAllocationHandle again;

static void *retain(void *none)
{
    for (unsigned last = 0;;) {
        unsigned now = atomic_load(&current);
        if (now == last)
            continue;
        CUmemGenericAllocationHandle handle;
        while (atomic_load(&current) == now)
            if (CU(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)address) == CUDA_SUCCESS) {
                again = handle;
                atomic_store(&retained, now);
                break;
            }
        last = now;
    }
    return none;
}

/* What is left of the limit. */
static size_t left(void)
{
    size_t free, total;
    must(cu.info(&free, &total), "cuMemGetInfo");
    return free;
}

/* A block that is mapped and has no handle; its mapping goes while the other thread asks for a handle. */
static bool one_try(unsigned number)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on_card();
    size_t before = left();
    if (CU(cuMemCreate)(&handle, BLOCK, &properties, 0) != CUDA_SUCCESS)
        return false;
    must((int)CU(cuMemMap)(address, BLOCK, 0, handle, 0), "cuMemMap");
    must((int)CU(cuMemRelease)(handle), "cuMemRelease");
    atomic_store(&current, number);
    for (volatile unsigned i = 0; i < number % 2000; i++) {
    }
    must((int)CU(cuMemUnmap)(address, BLOCK), "cuMemUnmap");
    atomic_store(&current, 0);
    usleep(1);
    if (atomic_load(&retained) == number && left() < before)
        CU(cuMemRelease)(again); /* it is charged: let it go, and try once more */
    return true;
}

PART(raced, "retained while it is unmapped")
{
    pthread_t thread;
    open_card();
    must((int)CU(cuMemAddressReserve)(&address, BLOCK, 0, 0, 0), "cuMemAddressReserve");
    must(pthread_create(&thread, NULL, retain, NULL), "pthread_create");
    uint64_t since = now_ns();
    for (unsigned number = 1; now_ns() - since < 2000000000u && one_try(number); number++)
        ;
}

int main(void)
{
    run_parts();
}
