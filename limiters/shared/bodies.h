/* Declares the bodies: the limiter's functions that answer in place of the driver's, named in the lines of api.def. A
 * body's arguments are the driver's own function (`real`), for OWN_IN the stream that NULL means (`null_stream`), and
 * the arguments of the call. */
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
