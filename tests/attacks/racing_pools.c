/* Ordered memory that is asked for while another thread ends a capture, makes another pool the device's, or
 * destroys that. */
#include "memory.h"

#define TRIES 5000

static CUstream stream;
static CUmemoryPool pools[2];
static atomic_bool stops;
static const CUmemPoolProps on_device = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static void *capture(void *nothing)
{
    while (!atomic_load(&stops)) {
        CUgraph graph = NULL;
        CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        for (volatile unsigned i = 0; i < 200; i++) {
        }
        if (CU(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS && graph != NULL)
            CU(cuGraphDestroy)(graph);
    }
    return nothing;
}

static void *change_pools(void *nothing)
{
    for (unsigned i = 0; !atomic_load(&stops); i++)
        CU(cuDeviceSetMemPool)(0, pools[i % 2]);
    return nothing;
}

/* Each pool is the device's for a moment, and destroyed when another one is. */
static void *destroy_pools(void *nothing)
{
    CUmemoryPool before = NULL, made;
    while (!atomic_load(&stops)) {
        must((int)CU(cuMemPoolCreate)(&made, &on_device), "cuMemPoolCreate");
        must((int)CU(cuDeviceSetMemPool)(0, made), "cuDeviceSetMemPool");
        if (before != NULL)
            must((int)CU(cuMemPoolDestroy)(before), "cuMemPoolDestroy");
        before = made;
    }
    return nothing;
}

static size_t left(void)
{
    size_t free, total;
    must(cu.info(&free, &total), "cuMemGetInfo");
    return free;
}

/* What both pools have of the card. */
static uint64_t reserved(void)
{
    uint64_t bytes, all = 0;
    for (unsigned i = 0; i < 2; i++) {
        must((int)CU(cuMemPoolGetAttribute)(pools[i], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes),
             "cuMemPoolGetAttribute");
        all += bytes;
    }
    return all;
}

/* Ask for half of the limit until the pools have what is not charged; and then for what is left. */
static void race(void *(*meanwhile)(void *))
{
    pthread_t thread;
    CUdeviceptr pointer;
    size_t limit = attack_number("ATTACK_MEMORY");
    must(pthread_create(&thread, NULL, meanwhile, NULL), "pthread_create");
    for (unsigned i = 0; i < TRIES && reserved() + left() <= limit; i++) {
        if (CU(cuMemAllocAsync)(&pointer, limit / 2, stream) != CUDA_SUCCESS || reserved() + left() > limit)
            continue;
        CU(cuMemFreeAsync)(pointer, stream);
        CU(cuStreamSynchronize)(stream);
        CU(cuMemPoolTrimTo)(pools[i % 2], 0);
    }
    atomic_store(&stops, true);
    pthread_join(thread, NULL);
    take_memory();
}

PART(captures_that_end, "captures that end")
{
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must((int)CU(cuDeviceGetMemPool)(&pools[0], 0), "cuDeviceGetMemPool");
    must((int)CU(cuMemPoolCreate)(&pools[1], &on_device), "cuMemPoolCreate");
    race(capture);
}

PART(pools_that_change, "pools that change")
{
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (unsigned i = 0; i < 2; i++)
        must((int)CU(cuMemPoolCreate)(&pools[i], &on_device), "cuMemPoolCreate");
    must((int)CU(cuDeviceSetMemPool)(0, pools[0]), "cuDeviceSetMemPool");
    race(change_pools);
}

/* Who names no pool is answered no error that another thread destroyed one. */
PART(pools_that_end, "pools that end")
{
    pthread_t thread;
    CUdeviceptr pointer;
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(pthread_create(&thread, NULL, destroy_pools, NULL), "pthread_create");
    for (uint64_t since = now_ns(); now_ns() - since < 2000000000ull;) {
        CUresult answer = CU(cuMemAllocAsync)(&pointer, BLOCK, stream);
        if (answer == CUDA_SUCCESS)
            answer = CU(cuMemFreeAsync)(pointer, stream);
        if (answer != CUDA_ERROR_OUT_OF_MEMORY)
            must((int)answer, "cuMemAllocAsync or cuMemFreeAsync");
    }
    atomic_store(&stops, true);
    pthread_join(thread, NULL);
    take_memory();
}

int main(void)
{
    /* An H100 (driver 580.159.04) ends who does the first one by SIGSEGV, without a limiter, too. */
    if (getenv("HETERO_RACK") == NULL)
        parts = parts->next;
    run_parts();
}
