/* In place of a management library, for vendors whose library tells neither power nor a process's memory. Time is then
 * charged at unity, and contexts are not charged. */
#ifndef HETERO_SHARED_MANAGEMENT_ABSENT_H
#define HETERO_SHARED_MANAGEMENT_ABSENT_H

#include "../timeshare/power.h"

#include <stdbool.h>
#include <stdint.h>

static inline void management_prepare(void)
{
}

static inline bool management_power(const char *uuid, struct power_reading *reading)
{
    (void)uuid, (void)reading;
    return false;
}

static inline bool management_process_memory(const char *uuid, uint64_t *bytes)
{
    (void)uuid, (void)bytes;
    return false;
}

#ifndef CARD_MEMORY_IS_KNOWN
static inline bool management_card_memory(const char *uuid, uint64_t *bytes)
{
    (void)uuid, (void)bytes;
    return false;
}
#endif

#endif
