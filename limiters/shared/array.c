/* Arrays: memory without an address, charged by its shape. */
#include "array.h"

#include "arguments.h"
#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"
#include "virtual.h"

#include "../core/fault.h"

#define GROUP_ELEMENTS 64
#define GROUP_ROWS     8

static uint64_t round_to_blocks(uint64_t bytes)
{
    return bytes > UINT64_MAX - BLOCK_BYTES ? UINT64_MAX : (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

result_t charge_array(int device, uint64_t bytes)
{
    if (bytes > ARRAYS_SHARE_UP_TO || !counted(device))
        return charge(device, round_to_blocks(bytes));
    result_t charge_result = charge(device, 0);
    return charge_result != RESULT_OK ? charge_result : charge_small_array(device, bytes);
}

static void refund_array(const struct entry *entry)
{
    if (entry->bytes > ARRAYS_SHARE_UP_TO)
        refund(entry->device, round_to_blocks(entry->bytes));
    else
        refund_small_array(entry->device, entry->bytes);
}

result_t settle_array(result_t answer, uint64_t key, int device, uint64_t bytes, uint64_t table_count)
{
    struct entry uncharged = {.kind = HELD_ARRAY, .device = device, .bytes = bytes};
    if (answer != RESULT_OK && counted(device)) {
        refund_array(&uncharged);
        remove_tables(device, table_count);
    }
    return answer != RESULT_OK ? answer
                               : settle(answer, HELD_ARRAY, key, device, bytes, (void *)(uintptr_t)table_count);
}

/* Whether an array is in a block that may outlive it. One that is charged two blocks may have two to itself. */
static bool is_in_kept_block(int device, uint64_t bytes)
{
    return BLOCKS_ARE_KEPT && counted(device) && bytes > 0 && bytes <= 2 * BLOCK_BYTES;
}

void array_freed(const struct entry *entry)
{
    if (is_in_kept_block(entry->device, entry->bytes) && !FAULT(small_arrays_refunded))
        keep_array_charged(entry->device, round_to_blocks(entry->bytes));
    else
        refund_array(entry);
    remove_tables(entry->device, entry->page_table_count);
    if (entry->bytes == 0)
        tiles_unmapped((const void *)(uintptr_t)entry->key);
}

/* The bytes of a shape, as it is laid out where no figure of the driver's shows it: in groups of 8 rows of 64 elements,
 * where it has several rows (NVIDIA's open kernel modules have such groups of 64 bytes, an element's least size). */
static uint64_t laid_out_bytes(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels, int device)
{
    if (shape == NULL || shape->Height == 0 || shape->Width > UINT32_MAX || shape->Height > UINT32_MAX ||
        !largest_sizes_are_charged(device))
        return array_bytes(shape, levels);
    NAMED(ARRAY3D_DESCRIPTOR) padded_shape = *shape;
    padded_shape.Width = (shape->Width + GROUP_ELEMENTS - 1) / GROUP_ELEMENTS * GROUP_ELEMENTS;
    padded_shape.Height = (shape->Height + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS;
    return array_bytes(&padded_shape, levels);
}

result_t create_array(result_t (*real)(TYPE(array) *, const NAMED(ARRAY_DESCRIPTOR) *), TYPE(array) *array,
                      const NAMED(ARRAY_DESCRIPTOR) *shape)
{
    COPY_ARGUMENT(shape);
    NAMED(ARRAY3D_DESCRIPTOR) shape_3d = {0};
    if (shape != NULL)
        shape_3d = (NAMED(ARRAY3D_DESCRIPTOR)){
            .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
    CREATE_ARRAY(laid_out_bytes(&shape_3d, 1, device), 0, destroy_array(DRIVER(ArrayDestroy), *array),
                 real(array, shape));
}

result_t create_array_3d(result_t (*real)(TYPE(array) *, const NAMED(ARRAY3D_DESCRIPTOR) *), TYPE(array) *array,
                         const NAMED(ARRAY3D_DESCRIPTOR) *shape)
{
    COPY_ARGUMENT(shape);
    CREATE_ARRAY(laid_out_bytes(shape, 1, device), tables_of_sparse(shape, 1),
                 destroy_array(DRIVER(ArrayDestroy), *array), real(array, shape));
}

result_t create_mipmap(result_t (*real)(TYPE(mipmappedArray) *, MIPMAP_SHAPE *, unsigned), TYPE(mipmappedArray) *array,
                       MIPMAP_SHAPE *shape, unsigned levels)
{
    COPY_ARGUMENT(shape);
    CREATE_ARRAY(laid_out_bytes(shape, levels, device), tables_of_sparse(shape, levels),
                 destroy_mipmap(DRIVER(MipmappedArrayDestroy), *array), real(array, shape, levels));
}

result_t destroy_array(result_t (*real)(TYPE(array)), TYPE(array) array)
{
    FREE(HELD_ARRAY, array, real(array));
}

result_t destroy_mipmap(result_t (*real)(TYPE(mipmappedArray)), TYPE(mipmappedArray) array)
{
    FREE(HELD_ARRAY, array, real(array));
}
