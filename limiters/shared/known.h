/* Which functions and tables of functions of the driver are known (api.def, others.def), and what becomes of others. */
#ifndef HETERO_SHARED_KNOWN_H
#define HETERO_SHARED_KNOWN_H

#include <stdbool.h>

/* Whether a function, by its exported name or as the driver's lookup functions call it, is answered as if there were
 * none: it is not known, and the grant is strict. Each one that is not known is logged once. */
bool function_hidden(const char *name);

/* Say and count once that something is not known; whether it is not to be had. */
bool refuse_unknown(const char *name);

#endif
