/* What an array takes. */
#ifndef HETERO_SHARED_LINEAR_H
#define HETERO_SHARED_LINEAR_H

#include "types.h"

#include <stdint.h>

/* What an array of this shape takes with `levels` mipmap levels, as each API's driver places it (linear.c). */
uint64_t array_bytes(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels);

#endif
