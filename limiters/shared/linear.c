/* The bytes of arrays that take no more than their elements (linear.h). */
#include "linear.h"

static uint64_t element_bytes(TYPE(array_format) format)
{
    switch (format) {
    case VALUE(AD_FORMAT_UNSIGNED_INT8):
    case VALUE(AD_FORMAT_SIGNED_INT8): return 1;
    case VALUE(AD_FORMAT_UNSIGNED_INT16):
    case VALUE(AD_FORMAT_SIGNED_INT16):
    case VALUE(AD_FORMAT_HALF): return 2;
    default: /* the 32-bit formats; the packed and compressed ones need no more */ return 4;
    }
}

/* Each mipmap level is half as wide, high and deep as the one before; layers do not shrink. UINT64_MAX: the shape is
 * too large for 64 bits. */
uint64_t array_bytes(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels)
{
    if (shape == NULL || shape->Flags & (NAMED(ARRAY3D_SPARSE) | NAMED(ARRAY3D_DEFERRED_MAPPING)))
        return 0; /* memory is mapped later, and charged when it is created */
    uint64_t total_bytes = 0;
    for (unsigned level = 0; level < levels && level < 64; level++) {
        uint64_t width = shape->Width >> level, height = shape->Height >> level, depth = shape->Depth;
        if (!(shape->Flags & (NAMED(ARRAY3D_LAYERED) | NAMED(ARRAY3D_CUBEMAP))))
            depth >>= level;
        uint64_t bytes = element_bytes(shape->Format) * shape->NumChannels;
        if (__builtin_mul_overflow(bytes, width > 0 ? width : 1, &bytes) ||
            __builtin_mul_overflow(bytes, height > 0 ? height : 1, &bytes) ||
            __builtin_mul_overflow(bytes, depth > 0 ? depth : 1, &bytes) ||
            __builtin_add_overflow(total_bytes, bytes, &total_bytes))
            return UINT64_MAX;
    }
    return total_bytes;
}
