/* Blocks that only sparse arrays refer to. */
#include "memory.h"

#define TILE_POOL 0x1         /* CU_MEM_CREATE_USAGE_TILE_POOL of cuda.h */
#define WIDE      (16 * 1024) /* texels of 16 bytes */
#define HIGH      1024        /* 256 MiB */

struct sparse { /* CUDA_ARRAY_SPARSE_PROPERTIES of cuda.h */
    unsigned width, height, depth;
    unsigned first_of_tail;
    unsigned long long tail;
    unsigned flags, reserved[4];
};

/* A tile's bounds in CUarrayMapInfo's subresource. */
struct bounds {
    unsigned level, layer, x, y, z, width, height, depth;
};

static CUarray sparse_array(struct sparse *tiles)
{
    CUarray array;
    CUresult (*properties)(struct sparse *, CUarray) = driver_function("cuArrayGetSparseProperties");
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = WIDE, .Height = HIGH, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4, .Flags = CUDA_ARRAY3D_SPARSE};
    if (CU(cuArray3DCreate_v2)(&array, &shape) != CUDA_SUCCESS)
        return NULL;
    if (properties(tiles, array) != CUDA_SUCCESS)
        *tiles = (struct sparse){.width = 64, .height = 64};
    return array;
}

/* To map a block to the array's `i`th tiles of 2 MiB; of no type, there are none. */
static CUarrayMapInfo tile(CUarray array, const struct sparse *tiles, CUmemGenericAllocationHandle handle, unsigned i)
{
    unsigned width = (unsigned)(BLOCK / (16ull * tiles->height)), across = WIDE / width;
    struct bounds bounds = {
        .x = i % across * width, .y = i / across * tiles->height, .width = width, .height = tiles->height, .depth = 1};
    CUarrayMapInfo info = {.resource = {.array = array},
                           .memOperationType = bounds.y < HIGH ? CU_MEM_OPERATION_TYPE_MAP : 0,
                           .memHandle = {handle},
                           .deviceBitMask = 1};
    memcpy(&info.subresource, &bounds, sizeof bounds);
    return info;
}

static bool map_tile(CUarray array, const struct sparse *tiles, CUmemGenericAllocationHandle handle, unsigned i,
                     CUstream stream)
{
    CUarrayMapInfo info = tile(array, tiles, handle, i);
    return info.memOperationType != 0 && CU(cuMemMapArrayAsync)(&info, 1, stream) == CUDA_SUCCESS;
}

static bool new_block(size_t bytes, CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp properties = on_card();
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    properties.allocFlags.usage = TILE_POOL;
    return CU(cuMemCreate)(handle, bytes, &properties, 0) == CUDA_SUCCESS;
}

/* Blocks in an array's tiles and without a handle. */
static void fill(CUarray array, const struct sparse *tiles, CUstream stream)
{
    CUmemGenericAllocationHandle handle;
    for (unsigned i = 0; array != NULL && i < times(BLOCK) && new_block(BLOCK, &handle); i++) {
        map_tile(array, tiles, handle, i, stream);
        CU(cuMemRelease)(handle);
    }
}

PART(mapped, "tiles of released blocks")
{
    struct sparse tiles;
    open_card();
    CUarray array = sparse_array(&tiles);
    fill(array, &tiles, NULL);
    cu.synchronize();
}

/* One array after the other; the first ones stay. */
PART(several_arrays, "of several arrays")
{
    struct sparse tiles;
    open_card();
    for (unsigned i = 0; i < 4; i++) {
        CUarray array = sparse_array(&tiles);
        fill(array, &tiles, NULL);
        cu.synchronize();
    }
}

/* The same tiles again and again: what was in them before is still there for a stream that does not come so far. */
PART(replaced_behind, "replaced behind a blocked stream")
{
    CUmemGenericAllocationHandle handle;
    struct sparse tiles;
    open_card();
    CUarray array = sparse_array(&tiles);
    CUstream stream = blocked_stream();
    for (unsigned i = 0; array != NULL && i < times(BLOCK) && new_block(BLOCK, &handle); i++) {
        map_tile(array, &tiles, handle, 0, stream);
        CU(cuMemRelease)(handle);
    }
}

/* What the limiter knows of a block lies in the program's heap, where the next one goes into what was freed last. So
 * two blocks can be had whose addresses there differ as those of two arrays do. */
#define KNOWN  24 /* bytes of what it knows */
#define ARRAYS 32
#define CHUNKS 8192

static void *chunks[CHUNKS];

static int by_address(const void *one, const void *other)
{
    uintptr_t a = (uintptr_t)*(void *const *)one, b = (uintptr_t)*(void *const *)other;
    return (a > b) - (a < b);
}

/* Two chunks that are not used yet; NULL: there are none. */
static void **find_twins(uintptr_t differ, void ***other)
{
    for (unsigned i = 0; i < CHUNKS; i++) {
        void *wanted = (void *)((uintptr_t)chunks[i] ^ differ);
        *other = bsearch(&wanted, chunks, CHUNKS, sizeof *chunks, by_address);
        if (*other != NULL)
            return &chunks[i];
    }
    return NULL;
}

/* A block of so many bytes that has one tile and no handle; what is known of it lies in this chunk. */
static void in_tile(void **chunk, size_t bytes, CUarray array, const struct sparse *tiles)
{
    CUmemGenericAllocationHandle handle;
    free(*chunk);
    if (!new_block(bytes, &handle))
        return;
    map_tile(array, tiles, handle, 0, NULL);
    cu.synchronize();
    CU(cuMemRelease)(handle);
}

PART(twins, "of blocks that look like others")
{
    CUarray arrays[ARRAYS];
    struct sparse tiles;
    void **one = NULL, **other;
    open_card();
    for (unsigned i = 0; i < ARRAYS; i++)
        arrays[i] = sparse_array(&tiles);
    for (unsigned i = 0; i < CHUNKS; i++)
        chunks[i] = malloc(KNOWN);
    qsort(chunks, CHUNKS, sizeof *chunks, by_address);
    for (unsigned i = 0; i < ARRAYS && one == NULL; i++)
        for (unsigned j = i + 1; j < ARRAYS && one == NULL; j++)
            if ((one = find_twins((uintptr_t)arrays[i] ^ (uintptr_t)arrays[j], &other)) != NULL) {
                in_tile(one, 12 * BLOCK, arrays[i], &tiles);
                in_tile(other, 12 * BLOCK, arrays[j], &tiles);
            }
    take_memory();
}

/* A tile with which nothing is done when the limiter looks, and which is mapped when the driver does. */
static CUarrayMapInfo asked;
static void *map_for_a_moment(void *nothing)
{
    volatile CUmemOperationType *operation = &asked.memOperationType;
    for (unsigned moves = 0; nothing == NULL; moves++) {
        *operation = CU_MEM_OPERATION_TYPE_MAP;
        for (volatile unsigned i = moves % 64; i > 0; i--) {
        }
        *operation = 0;
        for (volatile unsigned i = 64 + moves % 64; i > 0; i--) {
        }
    }
    return nothing;
}

static size_t left(void)
{
    size_t free, total;
    must(cu.info(&free, &total), "cuMemGetInfo");
    return free;
}

/* Until a block is in a tile and not charged. */
PART(changing, "tiles that another thread changes")
{
    CUmemGenericAllocationHandle handle;
    struct sparse tiles;
    pthread_t thread;
    open_card();
    size_t before = left();
    must(pthread_create(&thread, NULL, map_for_a_moment, NULL), "pthread_create");
    for (uint64_t since = now_ns(); now_ns() - since < 6000000000ull && new_block(before / 2, &handle);) {
        CUarray array = sparse_array(&tiles);
        if (array == NULL)
            break;
        asked = tile(array, &tiles, handle, 0);
        CUresult mapped = CU(cuMemMapArrayAsync)(&asked, 1, NULL);
        CU(cuMemRelease)(handle);
        if (mapped == CUDA_SUCCESS && left() == before)
            break;
        CU(cuArrayDestroy)(array);
    }
    take_memory();
}

static void end_at_once(int number)
{
    (void)number;
    _exit(0);
}

/* Its array is destroyed while a stream has yet to map them. There an H100's driver waits for the stream and then ends
 * the process by SIGSEGV, without hetero, too (580.159.04, 2026-11-23). */
PART(destroyed_behind, "destroyed behind a blocked stream")
{
    struct sparse tiles;
    open_card();
    signal(SIGSEGV, end_at_once);
    CUstream stream = blocked_stream();
    for (unsigned i = 0; i < 4; i++) {
        CUarray array = sparse_array(&tiles);
        fill(array, &tiles, stream);
        if (array != NULL)
            CU(cuArrayDestroy)(array);
    }
}

int main(void)
{
    run_parts();
}
