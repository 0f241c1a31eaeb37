/* Libraries, which the driver loads into a context when something of them is first used there: also by a launch, at
 * which nobody looks. So their arrays are charged in each context that stands. One that could not be read is loaded
 * into them when its kernels are first asked for, and charged by what that took.
 */
#ifndef HETERO_SHARED_LIBRARIES_H
#define HETERO_SHARED_LIBRARIES_H

#include "types.h"

#include <stdbool.h>
#include <stdint.h>

/* A library was loaded, and is charged in the current context. False: it does not fit into the others. */
bool library_loaded(uint64_t library, uint64_t bytes, bool is_unread);

/* Something of it is asked for. False: it does not fit, and nobody is to have that: it is unloaded, and the program's
 * unloading it is not for the driver. */
bool library_used(uint64_t library);
bool library_is_unloaded(uint64_t library);

void library_unloaded(uint64_t library);

/* Call this with each context of the device that stands; false: one call said so, and the rest was not made. */
bool standing_contexts(int device, bool (*visit)(context_t context, int device, void *argument), void *argument);

/* There is a context. False: the libraries do not fit into it. */
bool libraries_enter(context_t context, int device);

#endif
