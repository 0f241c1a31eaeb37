/* Finds the grant's device of an ordinal. Ordinals depend on the variable that selects visible devices, so only UUIDs
 * decide. */
#include "device.h"

#include "driver.h"

#include <string.h>

#define ORDINALS 64

enum { NOT_ASKED = 0 };

/* By ordinal: the grant's device + 3, or NOT_ASKED. Constant once asked, because the driver fixes its ordinals when it
 * is initialised; so every thread writes the same. */
static _Atomic int8_t devices_plus_3[ORDINALS];

int device_of(device_t ordinal)
{
    if (tenancy() != TENANCY_HELD || ordinal < 0 || ordinal >= ORDINALS)
        return tenancy() == TENANCY_HELD ? DEVICE_NONE : DEVICE_FOREIGN;
    int cached = atomic_load_explicit(&devices_plus_3[ordinal], memory_order_relaxed);
    if (cached != NOT_ASKED)
        return cached - 3;
    int found_device = device_by_uuid(ordinal);
    if (found_device != DEVICE_NONE)
        atomic_store_explicit(&devices_plus_3[ordinal], (int8_t)(found_device + 3), memory_order_relaxed);
    return found_device;
}

device_t ordinal_of(int device)
{
    device_t ordinal = 0;
    while (ordinal < ORDINALS - 1 && atomic_load_explicit(&devices_plus_3[ordinal], memory_order_relaxed) != device + 3)
        ordinal++;
    return ordinal;
}

bool all_devices_granted(void)
{
    device_count_t ordinal_count = 0;
    bool all_granted = DRIVER(DeviceGetCount)(&ordinal_count) == RESULT_OK && ordinal_count > 0;
    for (device_t ordinal = 0; all_granted && ordinal < (device_t)ordinal_count; ordinal++)
        all_granted = device_of(ordinal) >= 0;
    return all_granted;
}

void ordinals_after_fork(void)
{
    /* The child may initialise the driver anew, with other devices visible. */
    memset((void *)devices_plus_3, 0, sizeof devices_plus_3);
}
