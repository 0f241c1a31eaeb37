/* What the limiter asks of MTML, Moore Threads' management library. */
#ifndef HETERO_MUSA_MTML_H
#define HETERO_MUSA_MTML_H

#include "../timeshare/power.h"

#include <stdbool.h>
#include <stdint.h>

void mtml_prepare(void);

/* The power of a device (engine.h), and what the driver counts for this process on it. */
bool mtml_power(const char *uuid, struct power_reading *reading);
bool mtml_process_memory(const char *uuid, uint64_t *bytes);
bool mtml_card_memory(const char *uuid, uint64_t *bytes);

#endif
