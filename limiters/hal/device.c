/* Finds the grant's device of a device that hal names: a logical id. The runtime tells which of its devices that is,
 * and that one's UUID. */
#include "book.h"

#include "types.h"

#include "../shared/calls.h"
#include "../shared/device.h"
#include "../shared/driver.h"

#include "../core/tenant.h"

#define LOGICAL_IDS 64

enum { NOT_ASKED = 0 };

/* By logical id: the grant's device + 2, or NOT_ASKED. Constant once asked, so every thread writes the same. */
static _Atomic int8_t devices_plus_2[LOGICAL_IDS];

static void note(int32_t logical_id, int device)
{
    if (logical_id >= 0 && logical_id < LOGICAL_IDS && device != DEVICE_NONE)
        atomic_store_explicit(&devices_plus_2[logical_id], (int8_t)(device + 2), memory_order_relaxed);
}

/* If the process sees only one device, each id means that. */
static void ask_runtime(void)
{
    typeof(&FUNCTION(GetLogicDevIdByUserDevId)) get_logical_id = DRIVER(GetLogicDevIdByUserDevId);
    typeof(&FUNCTION(DeviceGetCount)) get_count = DRIVER(DeviceGetCount);
    device_count_t count;
    int32_t logical_id;
    if (get_count == NULL || get_count(&count) != RESULT_OK)
        return;
    for (logical_id = 0; count == 1 && logical_id < LOGICAL_IDS; logical_id++)
        note(logical_id, device_of(0));
    for (device_t ordinal = 0; count > 1 && get_logical_id != NULL && ordinal < (device_t)count; ordinal++)
        if (get_logical_id(ordinal, &logical_id) == RESULT_OK)
            note(logical_id, device_of(ordinal));
}

int device_of_hal(uint32_t logical_id)
{
    if (tenancy() != TENANCY_HELD || logical_id >= LOGICAL_IDS)
        return DEVICE_FOREIGN;
    if (atomic_load_explicit(&devices_plus_2[logical_id], memory_order_relaxed) == NOT_ASKED)
        hal_devices_learn();
    int known = atomic_load_explicit(&devices_plus_2[logical_id], memory_order_relaxed);
    return known == NOT_ASKED ? DEVICE_FOREIGN : known - 2;
}

void hal_devices_learn(void)
{
    work_begins();
    ask_runtime();
    work_ends();
}

void hal_devices_after_fork(void)
{
    for (unsigned logical_id = 0; logical_id < LOGICAL_IDS; logical_id++)
        atomic_store(&devices_plus_2[logical_id], NOT_ASKED);
}
