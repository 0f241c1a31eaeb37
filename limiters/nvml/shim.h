/* The limiter's own calls of NVML. */
#ifndef HETERO_NVML_SHIM_H
#define HETERO_NVML_SHIM_H

#include "../timeshare/power.h"

#include <stdbool.h>
#include <stdint.h>

/* Find the library's functions, before the others are called. */
void nvml_prepare(void);

/* The power of a device (../timeshare/engine.h). */
bool nvml_power(const char *uuid, struct power_reading *reading);

/* The bytes that the driver counts for this process on a device. False: it has no figure. */
bool nvml_process_memory(const char *uuid, uint64_t *bytes);

/* The bytes that all processes use on a device. False: it has no figure. */
bool nvml_card_memory(const char *uuid, uint64_t *bytes);

#endif
