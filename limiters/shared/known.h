/* Which functions and function tables of the driver are known (api.def, others.def); others are logged or hidden. */
#ifndef HETERO_SHARED_KNOWN_H
#define HETERO_SHARED_KNOWN_H

#include <stdbool.h>

/* Whether a lookup of a function fails, because the limiter does not know it and the grant is strict. `name` is the
 * exported name or that of the driver's lookup functions. Each unknown name is logged once. */
bool function_hidden(const char *name);

/* Log and count an unknown function or table once. Whether it is to be hidden. */
bool refuse_unknown(const char *name);

#endif
