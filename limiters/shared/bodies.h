/* What answers in place of the driver, one for each line of api.def that names it: a body gets the driver's own
 * function first, then the stream that NULL means where the line is one of OWN_IN, then the call's arguments. */
#ifndef HETERO_SHARED_BODIES_H
#define HETERO_SHARED_BODIES_H

#include "types.h"

#define PARAMETERS(...)                        , ##__VA_ARGS__
#define OWN(name, parameters, arguments, body) result_t body(typeof(&name) PARAMETERS parameters);
#define OWN_IN(name, default_stream, parameters, arguments, body)                                                      \
    result_t body(typeof(&name), stream_t PARAMETERS parameters);
#define GATED_IN(name, ...)
#define USED(name, ...)
#include "api.def"
#undef PARAMETERS

#endif
