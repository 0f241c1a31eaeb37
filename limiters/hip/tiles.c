/* What AMD's runtime takes of a card for an array. */
#include "tiles.h"

#include "../shared/array.h"
#include "../shared/pitch.h"

/* Bytes of an element; formats are CUDA's: 1, 2, 3 and 8, 9, 10 unsigned and signed of 1, 2 and 4 bytes, 16 half, 32
 * float. */
static size_t element_of(const HIP_ARRAY3D_DESCRIPTOR *shape)
{
    static const uint8_t sizes[33] = {[1] = 1, [2] = 2, [3] = 4, [8] = 1, [9] = 2, [10] = 4, [16] = 2, [32] = 4};
    unsigned format = shape->Format, channels = shape->NumChannels;
    return (format < 33 && sizes[format] ? sizes[format] : 8u) * (channels ? channels : 1);
}

/* The bytes of an array that is made of tiles of 2^bits bytes, of elements of 2^element bytes; a tile is about as deep
 * as it is wide where `thick`. */
static uint64_t tiles(hipExtent extent, unsigned bits, unsigned element, bool thick)
{
    unsigned width = thick ? (bits - element + 2) / 3 : (bits - element + 1) / 2;
    unsigned height = thick ? (bits - element - width + 1) / 2 : bits - element - width;
    uint64_t across = ((extent.width - 1) >> width) + 1, down = ((extent.height - 1) >> height) + 1;
    uint64_t deep = ((extent.depth - 1) >> (bits - element - width - height)) + 1, all;
    if (__builtin_mul_overflow(across, down, &all) || __builtin_mul_overflow(all, deep, &all) || all >> (62 - bits))
        return UINT64_MAX / 4;
    return all << bits;
}

#define ALIGNMENT 65536u

/* What an array takes: whole blocks, since its address is not told, of tiles as AMD's address library has them on
 * gfx906. Larger tiles are taken where they are about twice what smaller ones would be at most, deep ones likewise.
 * Their alignment comes on top, and all levels together take less than twice the first. Measured with AMD's runtime
 * 5.2.3 (docs/hip.md). */
static uint64_t level_bytes(size_t bytes, hipExtent extent)
{
    unsigned element = 0;
    while (element < 4 && (size_t)1 << element < bytes)
        element++;
    extent.width += extent.width == 0;
    extent.depth += extent.depth == 0;
    if (extent.height == 0)
        return BLOCK + block_bytes_of(pitched_bytes(extent.width, bytes, 1));
    uint64_t large = tiles(extent, 16, element, false), small = tiles(extent, 12, element, false);
    uint64_t taken = large / 9 <= small / 4 ? large : small, thick = tiles(extent, 16, element, true);
    taken = extent.depth > 1 && thick <= 2 * large && thick > taken ? thick : taken;
    return taken < BLOCK - ALIGNMENT ? BLOCK : block_bytes_of(taken + ALIGNMENT);
}

uint64_t with_levels(size_t bytes, hipExtent extent, unsigned levels)
{
    return (levels > 1 ? 2 : 1) * level_bytes(bytes, extent);
}

uint64_t array_bytes(const HIP_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (shape == NULL)
        return 0;
    return with_levels(element_of(shape), (hipExtent){shape->Width, shape->Height, shape->Depth}, levels);
}
