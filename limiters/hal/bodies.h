/* Declares the bodies: the limiter's functions that answer in place of the driver's, named in the lines of api.def. A
 * body's first argument is the driver's own function (`real`). */
#ifndef HETERO_HAL_BODIES_H
#define HETERO_HAL_BODIES_H

#include "abi.h"

#define PARAMETERS(...)                        , ##__VA_ARGS__
#define OWN(name, parameters, arguments, body) drvError_t body(typeof(&name) PARAMETERS parameters);
#include "api.def"
#undef PARAMETERS

#endif
