/* What an API's part of the limiter does before a process's first call of the driver, and in a child of fork. The first
 * call is start.c's to note. */
#ifndef HETERO_SHARED_START_H
#define HETERO_SHARED_START_H

#include "types.h"

/* Before the driver gets a call. An error: the driver is not to get one. */
result_t prepare(void);

/* Set the refund function of each kind of entry, and the reclaimer (charge.h); and in a child of fork,
 * forget what the parent holds. */
void prepare_charges(void);
void books_after_fork(void);

#endif
