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

/* The driver's own function; NULL: the driver is too old to have it. DRIVER takes the name without the API's prefix. */
#define REAL(name)    ((typeof(&name))symbol_real(&driver_library, &driver_rows[ROW_##name]))
#define DRIVER(name)  REAL_OF(FUNCTION(name))
#define REAL_OF(name) REAL(name)

#endif
