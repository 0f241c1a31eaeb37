/* What answers in place of the HSA runtime, one for each line of api.def that names it: a body gets the runtime's own
 * function first. */
#ifndef HETERO_HSA_BODIES_H
#define HETERO_HSA_BODIES_H

#include "abi.h"

#define PARAMETERS(...)                        , ##__VA_ARGS__
#define OWN(name, parameters, arguments, body) hsa_status_t body(typeof(&name) PARAMETERS parameters);
#define USED(name, parameters)
#include "api.def"
#undef PARAMETERS

#endif
