/* Declares the bodies: the limiter's functions that answer in place of the HSA runtime's, named in the lines of
 * api.def. A body's first argument is the runtime's own function (`real`). */
#ifndef HETERO_HSA_BODIES_H
#define HETERO_HSA_BODIES_H

#include "abi.h"

#define PARAMETERS(...)                        , ##__VA_ARGS__
#define OWN(name, parameters, arguments, body) hsa_status_t body(typeof(&name) PARAMETERS parameters);
#define USED(name, parameters)
#include "api.def"
#undef PARAMETERS

#endif
