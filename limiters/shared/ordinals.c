/* Which of the grant's devices a number of the driver's means. Numbers move with the variable that names visible
 * devices, so only UUIDs decide. */
#include "device.h"

#include "driver.h"

#include <string.h>

#define ORDINALS 64

enum { NOT_ASKED = 0 };

/* Per ordinal: the grant's device + 3, or NOT_ASKED. Constant once asked: the driver fixes it at its initialisation, so
 * every thread writes the same. */
static _Atomic int8_t known[ORDINALS];

int device_of(device_t device)
{
    if (tenancy() != TENANCY_HELD || device < 0 || device >= ORDINALS)
        return tenancy() == TENANCY_HELD ? DEVICE_NONE : DEVICE_FOREIGN;
    int seen = atomic_load_explicit(&known[device], memory_order_relaxed);
    if (seen != NOT_ASKED)
        return seen - 3;
    int found = device_asked(device);
    if (found != DEVICE_NONE)
        atomic_store_explicit(&known[device], (int8_t)(found + 3), memory_order_relaxed);
    return found;
}

device_t ordinal_of(int device)
{
    device_t ordinal = 0;
    while (ordinal < ORDINALS - 1 && atomic_load_explicit(&known[ordinal], memory_order_relaxed) != device + 3)
        ordinal++;
    return ordinal;
}

bool devices_all_ours(void)
{
    int count = 0;
    bool ours = DRIVER(DeviceGetCount)(&count) == RESULT_OK && count > 0;
    for (device_t device = 0; ours && device < count; device++)
        ours = device_of(device) >= 0;
    return ours;
}

void ordinals_after_fork(void)
{
    /* The child may initialise the driver anew, with other devices visible. */
    memset((void *)known, 0, sizeof known);
}
