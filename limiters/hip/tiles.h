/* What an array takes whose elements have so many bytes, and with so many mipmap levels. */
#ifndef HETERO_HIP_TILES_H
#define HETERO_HIP_TILES_H

#include "types.h"

uint64_t with_levels(size_t element_bytes, hipExtent extent, unsigned levels);

#endif
