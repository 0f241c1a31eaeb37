/* The driver's own functions, as the limiter calls them. */
#ifndef HETERO_SHARED_DRIVER_H
#define HETERO_SHARED_DRIVER_H

#include "types.h"

#include "../core/symbols.h"

enum {
#define OWN(name, ...)      ROW_##name,
#define OWN_IN(name, ...)   ROW_##name,
#define GATED_IN(name, ...) ROW_##name,
#define USED(name, ...)     ROW_##name,
#include "api.def"
    ROWS
};

extern struct symbol driver_rows[ROWS];
extern struct library driver_library;

/* Where an API has several libraries (types.h), the first has the rows before FIRST_OF_OTHERS. */
#ifndef FIRST_OF_OTHERS
#define FIRST_OF_OTHERS      ROWS
#define LIBRARY_OF(row)      (&driver_library)
#define IS_DRIVERS(function) library_calls(&driver_library, function)
#define HAS_FOLDER           false
#endif

/* The driver's own function; NULL: the driver is too old to have it. DRIVER takes the name without the API's prefix. */
#define REAL(name)    ((typeof(&name))symbol_real(LIBRARY_OF(ROW_##name), &driver_rows[ROW_##name]))
#define DRIVER(name)  REAL_OF(FUNCTION(name))
#define REAL_OF(name) REAL(name)

/* Calls whose arguments differ by API (types.h). */
#ifndef QUERY_EVENT
#define QUERY_EVENT(event)                      DRIVER(EventQuery)(event)
#define QUERY_CAPTURE(function, stream, status) (function)(stream, status)
#endif

#endif
