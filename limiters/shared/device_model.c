/* Asks the driver what it calls the model of a device. */
#include "device.h"

#include "driver.h"

bool device_model(int device, char *name, size_t size_bytes)
{
    typeof(&FUNCTION(DeviceGetName)) get_name = DRIVER(DeviceGetName);
    return get_name != NULL && get_name(name, (int)size_bytes, ordinal_of(device)) == RESULT_OK;
}
