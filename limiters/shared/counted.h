/* Which memory is ours to count, and giving it back. */
#ifndef HETERO_SHARED_COUNTED_H
#define HETERO_SHARED_COUNTED_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a device's memory is ours to count. */
bool counted(int device);

/* Give back what was charged. */
void refund(int device, uint64_t bytes);

#endif
