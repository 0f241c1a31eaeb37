/* Local memory of kernels: what a thread spills and its arrays. A launch makes the driver hold as much of it as all
 * threads of the device can have, for the context it is in, and nobody looks then. So it is charged when a program gets
 * hold of such a kernel: in each context that stands, and in each that is made later.
 */
#ifndef HETERO_SHARED_LOCAL_H
#define HETERO_SHARED_LOCAL_H

#include "types.h"

#include <stdbool.h>

/* The program has a function of a module, or a kernel of a library, which may run in any context. False: what its
 * threads have does not fit. */
bool local_of_function(TYPE(function) function);
bool local_of_kernel(TYPE(kernel) kernel);

/* There is a context. False: what kernels have does not fit into it. */
bool local_enter(context_t context, int device);

void local_after_fork(void);

#endif
