/* Whether this thread may call the runtime for the limiter: it is in an upper body, and the runtime, which may hold its
 * locks, is not in a call of the thread's. */
#ifndef HETERO_HAL_OUTSIDE_H
#define HETERO_HAL_OUTSIDE_H

#include <stdbool.h>

bool is_outside_runtime(void);
void set_outside_runtime(bool is_outside);

#endif
