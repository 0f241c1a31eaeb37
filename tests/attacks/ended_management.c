/* NVML ended more often than it was begun, so that nothing tells what no call tells: streams, narrow arrays. */
#include "memory.h"

#define ENDS    4
#define STREAMS 8000

static void end_management(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    must(library == NULL, "dlopen");
    int (*end)(void) = (int (*)(void))dlsym(library, "nvmlShutdown");
    for (unsigned i = 0; i < ENDS; i++)
        end();
}

PART(streams, "streams")
{
    CUstream stream;
    open_card();
    end_management();
    for (unsigned i = 0; i < STREAMS && CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS; i++)
        ;
}

/* Again and again, in case it is begun anew in between. */
PART(between, "streams, with ends between them")
{
    CUstream stream;
    open_card();
    for (unsigned i = 0; i < STREAMS && CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS; i++)
        if (i % 16 == 0)
            end_management();
}

PART(arrays, "arrays of a column")
{
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 1, .Height = 65536, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUarray array;
    open_card();
    end_management();
    for (unsigned i = 0; i < 800 && CU(cuArrayCreate_v2)(&array, &shape) == CUDA_SUCCESS; i++)
        ;
}

int main(void)
{
    run_parts();
}
