/* Whether memory is charged, and giving charges back. */
#ifndef HETERO_SHARED_COUNTED_H
#define HETERO_SHARED_COUNTED_H

#include <stdbool.h>
#include <stdint.h>

/* Whether memory of a device is charged: it is one of the grant's, and its policy is not off. */
bool counted(int device);

/* Whether all that the driver counts for this process on a device is charged, contexts and code included. */
bool contexts_counted(int device);

/* Give back charged bytes. */
void refund(int device, uint64_t bytes);

#endif
