/* Finds the grant's device by the runtime's UUID. */
#include "../shared/device.h"

#include "../shared/driver.h"

int device_by_uuid(device_t ordinal)
{
    typeof(&FUNCTION(DeviceGetUuid)) get_uuid = DRIVER(DeviceGetUuid);
    aclrtUuid uuid;
    return get_uuid == NULL || get_uuid(ordinal, &uuid) != RESULT_OK ? DEVICE_NONE
                                                                     : tenant_device((const uint8_t *)uuid.bytes);
}
