/* Local memory of kernels: what a thread spills, and its arrays. The first launch of a kernel makes the driver hold as
 * much of it as all threads of the device can have, in the context it is in, and keep it until that ends. So it is
 * charged before that launch: the most of all kernels that were launched, in each context that stands, and in each that
 * is made later. What a program gets and never launches costs nothing.
 */
#ifndef HETERO_SHARED_LOCAL_H
#define HETERO_SHARED_LOCAL_H

#include "types.h"

#include <stdbool.h>

/* The program has a function of a module, or a kernel of a library, which may run in any context. While one that has
 * more than contexts have anyway was not launched, launches are looked at. */
void local_of_function(TYPE(function) function);
void local_of_kernel(TYPE(kernel) kernel);

/* The driver's own function where the row leads, or once led, to one that looks at launches; otherwise NULL. */
void *local_driver(unsigned row);

/* It is about to be put into a graph. False: what its threads have does not fit. */
bool local_in_graph(const void *function);

/* There is a context. False: what kernels have does not fit into it. */
bool local_enter(context_t context, int device);

void local_after_fork(void);

#endif
