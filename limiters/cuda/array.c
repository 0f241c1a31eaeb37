/* Arrays: memory without an address, charged by its shape. */
#include "array.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"
#include "virtual.h"

static uint64_t element_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: /* the 32-bit formats; the packed and compressed ones need no more */ return 4;
    }
}

/* What an array of this shape holds with `levels` mipmap levels, each half as wide, high and deep as the one before.
 * Layers do not shrink. A shape too large for 64 bits is more than any limit. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (shape == NULL || shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0; /* mapped later, from memory that is charged when it is created */
    uint64_t total = 0;
    for (unsigned level = 0; level < levels && level < 64; level++) {
        uint64_t width = shape->Width >> level, height = shape->Height >> level, depth = shape->Depth;
        if (!(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
            depth >>= level;
        uint64_t bytes = element_bytes(shape->Format) * shape->NumChannels;
        if (__builtin_mul_overflow(bytes, width > 0 ? width : 1, &bytes) ||
            __builtin_mul_overflow(bytes, height > 0 ? height : 1, &bytes) ||
            __builtin_mul_overflow(bytes, depth > 0 ? depth : 1, &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return UINT64_MAX;
    }
    return total;
}

/* Arrays of up to this many bytes share blocks (measured as in blocks.h: fifty of 1 MiB took 50 MiB, and twenty of
 * 1.4 MB took 40). */
#define SHARED_UP_TO PIECE_BELOW

static CUresult charge_array(int device, uint64_t bytes)
{
    if (bytes > SHARED_UP_TO || !counted(device))
        return charge(device, blocks_for(bytes));
    CUresult refused = charge(device, 0);
    return refused != CUDA_SUCCESS ? refused : charge_small_array(device, bytes);
}

static CUresult settle_array(CUresult answer, uint64_t key, int device, uint64_t bytes)
{
    struct entry none = {.kind = HELD_ARRAY, .device = device, .bytes = bytes};
    if (answer != CUDA_SUCCESS && counted(device))
        array_gone(&none);
    return answer != CUDA_SUCCESS ? answer : settle(answer, HELD_ARRAY, key, device, bytes, NULL);
}

void array_gone(const struct entry *entry)
{
    if (entry->bytes > SHARED_UP_TO)
        refund(entry->device, blocks_for(entry->bytes));
    else
        refund_small_array(entry->device, entry->bytes);
    if (entry->bytes == 0)
        tiles_gone((const void *)(uintptr_t)entry->key);
}

#define CREATE_ARRAY(shape, levels, undo, call)                                                                        \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        uint64_t bytes = array_bytes(shape, levels);                                                                   \
        CUresult refused = charge_array(device, bytes);                                                                \
        if (refused != CUDA_SUCCESS)                                                                                   \
            return refused;                                                                                            \
        CUresult answer = call;                                                                                        \
        uint64_t key = answer == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*array : 0;                                       \
        answer = settle_array(answer, key, device, bytes);                                                             \
        if (answer != CUDA_SUCCESS || bytes > SHARED_UP_TO || uncounted_settle(device))                                \
            return answer;                                                                                             \
        undo; /* arrays of many sizes waste blocks */                                                                  \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    } while (0)

CUresult create_array(CUresult (*real)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *), CUarray *array,
                      const CUDA_ARRAY_DESCRIPTOR *shape)
{
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (shape != NULL)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){
            .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
    CREATE_ARRAY(&flat, 1, destroy_array(REAL(cuArrayDestroy), *array), real(array, shape));
}

CUresult create_array_3d(CUresult (*real)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *), CUarray *array,
                         const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CREATE_ARRAY(shape, 1, destroy_array(REAL(cuArrayDestroy), *array), real(array, shape));
}

CUresult create_mipmap(CUresult (*real)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned),
                       CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    CREATE_ARRAY(shape, levels, destroy_mipmap(REAL(cuMipmappedArrayDestroy), *array), real(array, shape, levels));
}

CUresult destroy_array(CUresult (*real)(CUarray), CUarray array)
{
    FREE(HELD_ARRAY, array, real(array));
}

CUresult destroy_mipmap(CUresult (*real)(CUmipmappedArray), CUmipmappedArray array)
{
    FREE(HELD_ARRAY, array, real(array));
}
