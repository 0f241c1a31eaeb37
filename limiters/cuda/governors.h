/* The governors of this process: one for each device of the grant that is limited in core. */
#ifndef HETERO_CUDA_GOVERNORS_H
#define HETERO_CUDA_GOVERNORS_H

#include "../timeshare/governor.h"

/* The governor of a device of the grant; NULL while it has none. */
struct governor *governor_known(int device);

/* The same, made on first use; NULL when there is no usage region or no memory. */
struct governor *governor_of(int device);

void governors_after_fork(void);

#endif
