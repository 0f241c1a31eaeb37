/* The memory sizes that programs see: the grant's. And what the card has in use, for the limiter. */

#include "../hal/outside.h"
#include "../shared/bodies.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/driver.h"

#include "management.h"

/* Of a kind of memory that the card has not, both sizes are 0. */
result_t memory_info(result_t (*real)(aclrtMemAttr, size_t *, size_t *), aclrtMemAttr memory, size_t *free_bytes,
                     size_t *total_bytes)
{
    result_t answer = real(memory, free_bytes, total_bytes);
    int device = device_current();
    if (answer != RESULT_OK || (device != DEVICE_FOREIGN && !counted(device)) || total_bytes == NULL ||
        *total_bytes == 0)
        return answer;
    uint64_t limit_bytes, left_bytes = grant_left_bytes(device, &limit_bytes);
    if (free_bytes != NULL && *free_bytes > left_bytes)
        *free_bytes = left_bytes;
    *total_bytes = limit_bytes;
    return answer;
}

/* The runtime tells it of the thread's current device. */
bool management_card_memory(const char *uuid, uint64_t *bytes)
{
    typeof(&FUNCTION(GetMemInfo)) get_info = DRIVER(GetMemInfo);
    size_t free_bytes, total_bytes;
    if (!is_outside_runtime() || get_info == NULL || device_current() != tenant_device_named(uuid) ||
        get_info(ACL_HBM_MEM, &free_bytes, &total_bytes) != RESULT_OK)
        return false;
    *bytes = total_bytes - free_bytes;
    return true;
}
