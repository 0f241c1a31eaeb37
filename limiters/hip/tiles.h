/* The bytes that an array takes, by the bytes of an element, its extent and its mipmap levels. */
#ifndef HETERO_HIP_TILES_H
#define HETERO_HIP_TILES_H

#include "types.h"

uint64_t with_levels(size_t element_bytes, hipExtent extent, unsigned levels);

#endif
