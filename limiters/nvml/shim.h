/* The NVML table, for the list of all doors (../cuda/shim.c), and what the governor asks of NVML. */
#ifndef HETERO_NVML_SHIM_H
#define HETERO_NVML_SHIM_H

#include "../timeshare/power.h"
#include "../core/symbols.h"

#include <stdbool.h>
#include <stdint.h>

extern const struct symbols nvml_symbols;

/* The power of a device (engine.h). */
bool nvml_power(const char *uuid, struct power_reading *reading);

/* What the driver counts for this process on a device. */
bool nvml_process_memory(const char *uuid, uint64_t *bytes);

#endif
