/* The bytes that AMD's runtime takes of a card for an array. */
#include "tiles.h"

#include "../shared/array.h"
#include "../shared/pitch.h"

/* The bytes of an element. Formats are CUDA's: 1, 2 and 3 are unsigned, 8, 9 and 10 are signed integers of 1, 2 and 4
 * bytes, 16 is half, 32 is float. */
static size_t element_bytes_of(const HIP_ARRAY3D_DESCRIPTOR *shape)
{
    static const uint8_t channel_bytes[33] = {[1] = 1, [2] = 2,  [3] = 4,  [8] = 1,
                                              [9] = 2, [10] = 4, [16] = 2, [32] = 4};
    unsigned format = shape->Format, channel_count = shape->NumChannels;
    return (format < 33 && channel_bytes[format] ? channel_bytes[format] : 8u) * (channel_count ? channel_count : 1);
}

/* The bytes of an array in tiles of 2^tile_bits bytes, with elements of 2^element_bits bytes. A thick tile is about as
 * deep as it is wide. Variables that end in _bits are powers of two. */
static uint64_t tiled_bytes(hipExtent extent, unsigned tile_bits, unsigned element_bits, bool is_thick)
{
    unsigned width_bits = is_thick ? (tile_bits - element_bits + 2) / 3 : (tile_bits - element_bits + 1) / 2;
    unsigned height_bits = is_thick ? (tile_bits - element_bits - width_bits + 1) / 2
                                    : tile_bits - element_bits - width_bits;
    uint64_t tiles_across = ((extent.width - 1) >> width_bits) + 1,
             tiles_down = ((extent.height - 1) >> height_bits) + 1;
    uint64_t tiles_deep = ((extent.depth - 1) >> (tile_bits - element_bits - width_bits - height_bits)) + 1, tile_count;
    if (__builtin_mul_overflow(tiles_across, tiles_down, &tile_count) ||
        __builtin_mul_overflow(tile_count, tiles_deep, &tile_count) || tile_count >> (62 - tile_bits))
        return UINT64_MAX / 4;
    return tile_count << tile_bits;
}

#define ALIGNMENT 65536u

/* The bytes of an array's first level: whole blocks, since its address is not known, of tiles as AMD's address library
 * places them on gfx906. Large tiles are used if they take at most about twice the bytes of small ones, and thick ones
 * likewise. The tiles' alignment is added. All levels together take less than twice the first. Measured with AMD's
 * runtime 5.2.3 (docs/hip.md). */
static uint64_t level_bytes(size_t element_bytes, hipExtent extent)
{
    unsigned element_bits = 0;
    while (element_bits < 4 && (size_t)1 << element_bits < element_bytes)
        element_bits++;
    extent.width += extent.width == 0;
    extent.depth += extent.depth == 0;
    if (extent.height == 0)
        return BLOCK_BYTES + block_bytes_of(pitched_bytes(extent.width, element_bytes, 1));
    uint64_t large_bytes = tiled_bytes(extent, 16, element_bits, false),
             small_bytes = tiled_bytes(extent, 12, element_bits, false);
    uint64_t array_bytes_taken = large_bytes / 9 <= small_bytes / 4 ? large_bytes : small_bytes,
             thick_bytes = tiled_bytes(extent, 16, element_bits, true);
    array_bytes_taken = extent.depth > 1 && thick_bytes <= 2 * large_bytes && thick_bytes > array_bytes_taken
                            ? thick_bytes
                            : array_bytes_taken;
    return array_bytes_taken < BLOCK_BYTES - ALIGNMENT ? BLOCK_BYTES : block_bytes_of(array_bytes_taken + ALIGNMENT);
}

uint64_t with_levels(size_t element_bytes, hipExtent extent, unsigned levels)
{
    return (levels > 1 ? 2 : 1) * level_bytes(element_bytes, extent);
}

uint64_t array_bytes(const HIP_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (shape == NULL)
        return 0;
    return with_levels(element_bytes_of(shape), (hipExtent){shape->Width, shape->Height, shape->Depth}, levels);
}
