/* NVML's own functions, as the limiter calls them. */
#ifndef HETERO_NVML_DRIVER_H
#define HETERO_NVML_DRIVER_H

#include "abi.h"

#include "../core/symbols.h"

#include <stdint.h>
#include <time.h>

enum {
#define OWN(name, ...) ROW_##name,
#define USED(name)     ROW_##name,
#include "api.def"
    ROWS
};

extern struct symbol nvml_rows[ROWS];
extern struct library nvml_library;

/* The library's own function; NULL: the library is too old to have it. */
#define REAL(name) ((typeof(&name))symbol_real(&nvml_library, &nvml_rows[ROW_##name]))

/* The same, if it was found by nvml_prepare(). The limiter's threads make no lookups. */
#define KNOWN(name) ((typeof(&name))symbol_known(&nvml_rows[ROW_##name]))

/* The time of a clock. NVML's time stamps are of CLOCK_REALTIME. */
static inline uint64_t nvml_clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

#endif
