/* The functions of libascend_hal.so, as the limiter calls them. */
#ifndef HETERO_HAL_DRIVER_H
#define HETERO_HAL_DRIVER_H

#include "abi.h"

#include "../core/symbols.h"

enum {
#define OWN(name, ...) ROW_##name,
#include "api.def"
    ROWS
};

extern struct symbol hal_rows[ROWS];
extern struct library hal_library;

/* The driver's own function; NULL: the driver is too old to have it. */
#define REAL(name) ((typeof(&name))symbol_real(&hal_library, &hal_rows[ROW_##name]))

#endif
