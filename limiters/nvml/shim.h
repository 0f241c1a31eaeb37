/* What the limiter asks of NVML. */
#ifndef HETERO_NVML_SHIM_H
#define HETERO_NVML_SHIM_H

#include "../timeshare/power.h"

#include <stdbool.h>
#include <stdint.h>

/* Find the library, for the rest of this. */
void nvml_prepare(void);

/* The power of a device (../timeshare/engine.h). */
bool nvml_power(const char *uuid, struct power_reading *reading);

/* What the driver counts for this process on a device. */
bool nvml_process_memory(const char *uuid, uint64_t *bytes);

/* What is used of a device, by whomever. */
bool nvml_card_memory(const char *uuid, uint64_t *bytes);

#endif
