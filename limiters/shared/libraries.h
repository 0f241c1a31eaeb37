/* Libraries. The driver loads one into a context when it is first used there, also by a launch, which the limiter does
 * not check. So a library's arrays are charged in each context that exists. A library whose image could not be read is
 * loaded into all contexts when its kernels are first looked up, and charged by what that took.
 */
#ifndef HETERO_SHARED_LIBRARIES_H
#define HETERO_SHARED_LIBRARIES_H

#include "types.h"

#include <stdbool.h>
#include <stdint.h>

/* A library was loaded and charged in the current context: charge the other contexts. False: it does not fit. */
bool library_loaded(uint64_t library, uint64_t bytes, bool is_unread);

/* A kernel or variable of a library is looked up. False: the library does not fit into all contexts, and the lookup
 * must fail. Unless the program has its kernels already, it is unloaded: the program's own unload is then not passed
 * on. */
bool library_used(uint64_t library);
bool library_is_unloaded(uint64_t library);

void library_unloaded(uint64_t library);

/* Call `visit` with each context of the device, until it returns false. Whether it never did. */
bool standing_contexts(int device, bool (*visit)(context_t context, int device, void *argument), void *argument);

/* A context was made: charge all libraries in it. False: they do not fit. */
bool libraries_enter(context_t context, int device);

#endif
