/* Memory calls that only HIP has. */
#include "tiles.h"

#include "../shared/arguments.h"
#include "../shared/array.h"
#include "../shared/bodies.h"
#include "../shared/driver.h"
#include "../shared/pitch.h"

#include "../core/fault.h"

hipError_t properties_of(hipError_t (*real)(hipDeviceProp_t *, int), hipDeviceProp_t *properties, int ordinal)
{
    return total_shown(real(properties, ordinal), &properties->totalGlobalMem, ordinal);
}

hipError_t properties_r0600(hipError_t (*real)(hipDeviceProp_tR0600 *, int), hipDeviceProp_tR0600 *properties,
                            int ordinal)
{
    return total_shown(real(properties, ordinal), &properties->totalGlobalMem, ordinal);
}

static hipError_t allocate_rows_of(hipError_t (*real)(void **, size_t *, size_t, size_t), void **pointer,
                                   size_t *pitch_bytes, size_t width_bytes, size_t row_count)
{
    ALLOCATE_PITCHED(width_bytes, row_count, 1, pointer, *pitch_bytes, *pitch_bytes * row_count,
                     real(pointer, pitch_bytes, width_bytes, row_count));
}

hipError_t allocate_rows(hipError_t (*real)(void **, size_t *, size_t, size_t), void **pointer, size_t *pitch_bytes,
                         size_t width_bytes, size_t row_count)
{
    size_t private_pitch = 0;
    result_t answer = allocate_rows_of(real, pointer, pitch_bytes == NULL ? NULL : &private_pitch, width_bytes,
                                       row_count);
    publish_output((uintptr_t)pitch_bytes, &private_pitch, answer == RESULT_OK ? sizeof private_pitch : 0);
    return answer;
}

hipError_t allocate_3d(hipError_t (*real)(hipPitchedPtr *, hipExtent), hipPitchedPtr *pointer, hipExtent extent)
{
    *pointer = (hipPitchedPtr){.xsize = extent.width, .ysize = extent.height};
    ALLOCATE_PITCHED(extent.width, extent.height, extent.depth, &pointer->ptr, pointer->pitch,
                     pointer->pitch * extent.height * extent.depth, real(pointer, extent));
}

/* Its header says that this is the same as hipHostMalloc, but AMD's runtime 5.2.3 allocates memory of the card here. */
hipError_t allocate_host(hipError_t (*real)(void **, size_t, unsigned), void **pointer, size_t bytes, unsigned flags)
{
    return (DRIVER(HostMalloc) != NULL && !FAULT(host_memory_of_the_card) ? DRIVER(HostMalloc) : real)(pointer, bytes,
                                                                                                       flags);
}

/* The bytes of an array, whose format has the bits of each of four channels. */
static uint64_t formatted_bytes(const hipChannelFormatDesc *format, hipExtent extent, unsigned levels)
{
    int element_bits = format == NULL ? 0 : format->x + format->y + format->z + format->w;
    return with_levels((size_t)(element_bits + 7) / 8, extent, levels);
}

hipError_t allocate_array(hipError_t (*real)(hipArray_t *, const hipChannelFormatDesc *, size_t, size_t, unsigned),
                          hipArray_t *array, const hipChannelFormatDesc *format, size_t width, size_t height,
                          unsigned flags)
{
    CREATE_ARRAY(formatted_bytes(format, (hipExtent){width, height, 1}, 1), 0,
                 destroy_array(REAL(hipFreeArray), *array), real(array, format, width, height, flags));
}

hipError_t allocate_array_3d(hipError_t (*real)(hipArray_t *, const hipChannelFormatDesc *, hipExtent, unsigned),
                             hipArray_t *array, const hipChannelFormatDesc *format, hipExtent extent, unsigned flags)
{
    CREATE_ARRAY(formatted_bytes(format, extent, 1), 0, destroy_array(REAL(hipFreeArray), *array),
                 real(array, format, extent, flags));
}

hipError_t allocate_mipmap(hipError_t (*real)(hipMipmappedArray_t *, const hipChannelFormatDesc *, hipExtent, unsigned,
                                              unsigned),
                           hipMipmappedArray_t *array, const hipChannelFormatDesc *format, hipExtent extent,
                           unsigned levels, unsigned flags)
{
    CREATE_ARRAY(formatted_bytes(format, extent, levels), 0, destroy_mipmap(REAL(hipFreeMipmappedArray), *array),
                 real(array, format, extent, levels, flags));
}
