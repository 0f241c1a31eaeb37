/* Local memory of kernels: a thread's spilled registers and arrays. At a kernel's first launch the driver allocates it
 * in the context, for all resident threads of the device, and keeps it until the context ends. So it is charged before
 * that launch: the largest of all launched kernels, in each context that exists or is made later. A kernel that is
 * never launched costs nothing.
 */
#ifndef HETERO_SHARED_LOCAL_H
#define HETERO_SHARED_LOCAL_H

#include "types.h"

#include <stdbool.h>

/* The program looked up a function of a module, or a kernel of a library, which may run in any context. While one that
 * needs more local memory than contexts have by themselves was not launched, launches are observed. */
void local_of_function(TYPE(function) function);
void local_of_kernel(TYPE(kernel) kernel);

/* The driver's own function behind a row that is or was redirected to an observer; otherwise NULL. */
void *local_driver(unsigned row);

/* A kernel is about to be put into a graph. False: its local memory does not fit. */
bool local_in_graph(const void *function);

/* A context was made: charge local memory in it. False: it does not fit. */
bool local_enter(context_t context, int device);

void local_after_fork(void);

#endif
