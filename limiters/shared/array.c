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

static uint64_t whole_blocks(uint64_t bytes)
{
    return bytes > UINT64_MAX - BLOCK ? UINT64_MAX : (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

result_t charge_array(int device, uint64_t bytes)
{
    if (bytes > ARRAYS_SHARE_UP_TO || !counted(device))
        return charge(device, whole_blocks(bytes));
    result_t refused = charge(device, 0);
    return refused != RESULT_OK ? refused : charge_small_array(device, bytes);
}

static void refund_array(const struct entry *entry)
{
    if (entry->bytes > ARRAYS_SHARE_UP_TO)
        refund(entry->device, whole_blocks(entry->bytes));
    else
        refund_small_array(entry->device, entry->bytes);
}

result_t settle_array(result_t answer, uint64_t key, int device, uint64_t bytes, uint64_t tables)
{
    struct entry none = {.kind = HELD_ARRAY, .device = device, .bytes = bytes};
    if (answer != RESULT_OK && counted(device)) {
        refund_array(&none);
        tables_fewer(device, tables);
    }
    return answer != RESULT_OK ? answer : settle(answer, HELD_ARRAY, key, device, bytes, (void *)(uintptr_t)tables);
}

/* Whether an array lies in a block that may outlive it. One that is charged two blocks may have two of its own. */
static bool in_kept_block(int device, uint64_t bytes)
{
    return BLOCKS_ARE_KEPT && counted(device) && bytes > 0 && bytes <= 2 * BLOCK;
}

void array_gone(const struct entry *entry)
{
    if (in_kept_block(entry->device, entry->bytes) && !FAULT(small_arrays_refunded))
        array_kept(entry->device, whole_blocks(entry->bytes));
    else
        refund_array(entry);
    tables_fewer(entry->device, (uintptr_t)entry->link);
    if (entry->bytes == 0)
        tiles_gone((const void *)(uintptr_t)entry->key);
}

result_t create_array(result_t (*real)(TYPE(array) *, const NAMED(ARRAY_DESCRIPTOR) *), TYPE(array) *array,
                      const NAMED(ARRAY_DESCRIPTOR) *shape)
{
    AS_IT_IS(shape);
    NAMED(ARRAY3D_DESCRIPTOR) flat = {0};
    if (shape != NULL)
        flat = (NAMED(ARRAY3D_DESCRIPTOR)){
            .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
    CREATE_ARRAY(array_bytes(&flat, 1), 0, destroy_array(DRIVER(ArrayDestroy), *array), real(array, shape));
}

result_t create_array_3d(result_t (*real)(TYPE(array) *, const NAMED(ARRAY3D_DESCRIPTOR) *), TYPE(array) *array,
                         const NAMED(ARRAY3D_DESCRIPTOR) *shape)
{
    AS_IT_IS(shape);
    CREATE_ARRAY(array_bytes(shape, 1), tables_of_sparse(shape, 1), destroy_array(DRIVER(ArrayDestroy), *array),
                 real(array, shape));
}

result_t create_mipmap(result_t (*real)(TYPE(mipmappedArray) *, MIPMAP_SHAPE *, unsigned), TYPE(mipmappedArray) *array,
                       MIPMAP_SHAPE *shape, unsigned levels)
{
    AS_IT_IS(shape);
    CREATE_ARRAY(array_bytes(shape, levels), tables_of_sparse(shape, levels),
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
