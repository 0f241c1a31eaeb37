/* The bytes of an array. */
#ifndef HETERO_SHARED_LINEAR_H
#define HETERO_SHARED_LINEAR_H

#include "types.h"

#include <stdint.h>

/* The bytes that an array of this shape with `levels` mipmap levels takes, as the API's driver places it. */
uint64_t array_bytes(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels);

#endif
