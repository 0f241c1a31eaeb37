/* Finds the grant's device by the driver's UUID. */
#include "device.h"

#include "driver.h"

#include <stdio.h>

int device_by_uuid(device_t ordinal)
{
    TYPE(uuid) uuid;
    typeof(&FUNCTION(DeviceGetUuid_v2)) get_uuid = DRIVER(DeviceGetUuid_v2);
    if (get_uuid == NULL)
        get_uuid = DRIVER(DeviceGetUuid); /* before CUDA 11.4: the whole card's UUID, not its MIG instance's */
    if (get_uuid == NULL || get_uuid(&uuid, ordinal) != RESULT_OK)
        return DEVICE_NONE;
    if (!UUID_IS_TEXT)
        return tenant_device((const uint8_t *)uuid.bytes);
    char name[32];
    snprintf(name, sizeof name, "GPU-%.16s", (const char *)uuid.bytes);
    return tenant_device_named(name);
}
