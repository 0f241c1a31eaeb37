/* The rack's AMD devices (amd.h): the keys are NVIDIA's (docs/racks.md). */
#include "amd.h"

#ifndef VENDOR
#define VENDOR "amd"
#endif
#include "nvidia.c"

uint64_t amd_unique_id(const struct nvidia_device *device)
{
    unsigned long long id;
    int parsed_length = 0;
    if (sscanf(device->uuid, UUID_PREFIX "%16llx%n", &id, &parsed_length) == 1 &&
        parsed_length == 16 + (int)strlen(UUID_PREFIX) && !device->uuid[parsed_length])
        return id;
    return rack_hash(0, device->uuid, strlen(device->uuid));
}
