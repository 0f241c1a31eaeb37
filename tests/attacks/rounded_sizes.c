/* Sizes that take more than they are. */
#include "memory.h"

static void take_each(size_t bytes, unsigned most)
{
    uint64_t pointer;
    for (unsigned i = 0; i < most && cu.allocate(&pointer, bytes) == 0; i++)
        ;
}

PART(a_byte_more, "a byte more than a block")
{
    open_card();
    take_each(2 * MIB + 1, times(2 * MIB));
    take_each(1 * MIB, times(1 * MIB));
    take_each(20 * MIB + 1, 8);
}

/* Small pieces between large ones; the large ones are freed, and the small ones keep the blocks. */
static void pinned(size_t small, size_t large)
{
    static uint64_t between[4096];
    uint64_t pointer;
    open_card();
    for (unsigned round = 0; round < 4; round++) {
        unsigned count = 0;
        while (count < 4096 && cu.allocate(&pointer, small) == 0 && cu.allocate(&between[count], large) == 0)
            count++;
        while (count > 0)
            cu.release(between[--count]);
        take_memory();
    }
}

PART(pinned_by_512, "blocks pinned by 512 bytes")
{
    pinned(512, MIB - 1024);
}

PART(pinned_by_half, "every second piece freed")
{
    pinned(700 * 1024, 700 * 1024);
}

PART(small_arrays, "small arrays")
{
    static const unsigned sides[] = {16, 64, 300, 512, 600, 1024};
    CUarray array;
    open_card();
    for (unsigned i = 0; i < sizeof sides / sizeof *sides; i++) {
        CUDA_ARRAY_DESCRIPTOR shape = {
            .Width = sides[i], .Height = sides[i], .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
        for (unsigned j = 0; j < 512 && CU(cuArrayCreate_v2)(&array, &shape) == CUDA_SUCCESS; j++)
            ;
    }
}

/* Rows of a few bytes, and few of them in each layer, take more than their elements. */
PART(narrow_arrays, "narrow arrays")
{
    static const CUDA_ARRAY3D_DESCRIPTOR shapes[] = {
        {.Width = 5, .Height = 65536, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1},
        {.Width = 1, .Height = 5, .Depth = 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4},
    };
    CUarray array;
    open_card();
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned j = 0; j < times(BLOCK) && CU(cuArray3DCreate_v2)(&array, &shapes[i]) == CUDA_SUCCESS; j++)
            ;
}

/* A row of a byte has a pitch of 512. */
PART(pitched, "pitches")
{
    CUdeviceptr pointer;
    size_t pitch;
    open_card();
    for (unsigned i = 0; i < times(MIB) && CU(cuMemAllocPitch_v2)(&pointer, &pitch, 1, 4097, 4) == CUDA_SUCCESS; i++)
        ;
}

int main(void)
{
    run_parts();
}
