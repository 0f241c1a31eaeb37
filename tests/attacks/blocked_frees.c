/* Memory that is freed in the order of a stream that does not come there. */
#include "memory.h"

#define TAKEN (16 * MIB)

/* A stream's own order lets it use again what it freed: so each allocation is of another stream. */
static void free_in_others(CUstream behind)
{
    CUdeviceptr pointer;
    for (unsigned i = 0; i < times(TAKEN) && CU(cuMemAllocAsync)(&pointer, TAKEN, NULL) == CUDA_SUCCESS; i++)
        CU(cuMemFreeAsync)(pointer, behind);
}

PART(waiting, "behind a wait for a word")
{
    open_card();
    free_in_others(blocked_stream());
}

static void sleep_on(void *none)
{
    (void)none;
    sleep(2);
}

static bool sleeping(CUstream *stream)
{
    must(CU(cuStreamCreate)(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return CU(cuLaunchHostFunc)(*stream, sleep_on, NULL) == CUDA_SUCCESS;
}

PART(asleep, "behind a host function that sleeps")
{
    CUstream stream;
    open_card();
    must(!sleeping(&stream), "cuLaunchHostFunc");
    free_in_others(stream);
}

PART(plain, "cuMemAlloc's memory")
{
    CUdeviceptr pointer;
    open_card();
    CUstream stream = blocked_stream();
    for (unsigned i = 0; i < times(TAKEN) && cu.allocate((uint64_t *)&pointer, TAKEN) == 0; i++)
        CU(cuMemFreeAsync)(pointer, stream);
}

/* The stream comes past it, and the program waits for nothing: a card keeps what cuMemAlloc took until it does. */
PART(passed, "passed, and waited for by nobody")
{
    CUdeviceptr pointer;
    CUstream stream;
    open_card();
    must(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (unsigned i = 0; i < times(TAKEN) && cu.allocate((uint64_t *)&pointer, TAKEN) == 0; i++) {
        CU(cuMemFreeAsync)(pointer, stream);
        usleep(1000);
    }
}

PART(own_default_stream, "a thread's own default stream")
{
    CUdeviceptr pointer;
    open_card();
    block(CU_STREAM_PER_THREAD);
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUstream stream = blocked_stream();
        if (stream == NULL || CU(cuMemAllocAsync)(&pointer, TAKEN, stream) != CUDA_SUCCESS)
            break;
        CU(cuMemFreeAsync)(pointer, CU_STREAM_PER_THREAD);
    }
}

/* The streams are gone, their work is not. */
PART(streams_destroyed, "streams destroyed")
{
    CUdeviceptr pointer;
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUstream stream = blocked_stream();
        if (stream == NULL)
            break;
        bool refused = (i % 2 == 0 ? (int)CU(cuMemAllocAsync)(&pointer, TAKEN, stream)
                                   : cu.allocate((uint64_t *)&pointer, TAKEN)) != 0;
        if (!refused)
            CU(cuMemFreeAsync)(pointer, stream);
        CU(cuStreamDestroy_v2)(stream);
        if (refused)
            break;
    }
}

/* The same of streams that have come past it: nobody waits for them, and afterwards nobody can. */
PART(passed_and_destroyed, "streams destroyed that have passed")
{
    CUdeviceptr pointer;
    CUstream stream;
    open_card();
    for (unsigned i = 0; i < times(TAKEN) && CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS; i++) {
        bool got = cu.allocate((uint64_t *)&pointer, TAKEN) == 0;
        if (got)
            CU(cuMemFreeAsync)(pointer, stream);
        usleep(1000);
        CU(cuStreamDestroy_v2)(stream);
        if (!got)
            break;
    }
}

PART(pools_destroyed, "pools destroyed")
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    open_card();
    CUstream stream = blocked_stream();
    for (unsigned i = 0; i < times(TAKEN); i++) {
        must(CU(cuMemPoolCreate)(&pool, &properties), "cuMemPoolCreate");
        bool refused = CU(cuMemAllocFromPoolAsync)(&pointer, TAKEN, pool, stream) != CUDA_SUCCESS;
        if (!refused)
            CU(cuMemFreeAsync)(pointer, stream);
        CU(cuMemPoolDestroy)(pool);
        if (refused)
            break;
    }
}

int main(void)
{
    run_parts();
}
