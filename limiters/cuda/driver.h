/* The CUDA driver's own functions, as the limiter calls them. */
#ifndef HETERO_CUDA_DRIVER_H
#define HETERO_CUDA_DRIVER_H

#include "abi.h"

#include "../core/symbols.h"

enum {
#define OWN(name, ...)      ROW_##name,
#define OWN_IN(name, ...)   ROW_##name,
#define GATED_IN(name, ...) ROW_##name,
#define USED(name)          ROW_##name,
#include "api.def"
    ROWS
};

extern struct symbol cuda_rows[ROWS];
extern struct library cuda_library;

/* The driver's own function; NULL in a driver too old to have it. */
#define REAL(name) ((typeof(&name))symbol_real(&cuda_library, &cuda_rows[ROW_##name]))

#endif
