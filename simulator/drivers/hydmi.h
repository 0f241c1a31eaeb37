/* Hygon's virtual device interface as this project meets it: our own declarations of what libhydmi.so exports. The
 * public references are dmi_virtual.h and dmi_error.h (Project-HAMi/dcu-dcgm, pkg/dcgm/include). There is no call to
 * initialise it. Virtual devices are numbered through the whole machine.
 */
#ifndef HETERO_FAKE_HYDMI_H
#define HETERO_FAKE_HYDMI_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    DMI_STATUS_SUCCESS = 0,
    DMI_STATUS_ERROR = 1,
    DMI_STATUS_OPEN_MKFD_FAILED = 3, /* no driver */
    DMI_STATUS_INVALID_ARGUMENTS = 10,
    DMI_STATUS_OUT_OF_RESOURCES = 11,
    DMI_STATUS_VDEV_NOT_EXIST = 15,
    DMI_STATUS_DEVICE_BUSY = 17,
} dmiStatus;

typedef struct {
    char name[256];
    int compute_unit_count;
    size_t global_mem_size, usage_mem_size; /* bytes */
    uint64_t container_id;
    int device_id; /* the physical card */
} dmiDeviceInfo;

_Static_assert(sizeof(dmiDeviceInfo) == 296, "as the public header lays it out");

#endif
