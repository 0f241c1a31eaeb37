/* The fake NVML: the events that it passes on, and what slows a card down. The rack is read anew for both, so that a
 * test can have them happen: `xid = 48` is the last Xid of a card, and `health = hot` one that is too hot. */
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

/* What nvml.h has beside what the limiter's abi.h declares. */
#define NVML_ERROR_TIMEOUT        ((nvmlReturn_t)10)
#define XID_EVENT                 0x8ULL  /* nvmlEventTypeXidCriticalError */
#define HARDWARE_THERMAL_SLOWDOWN 0x40ULL /* nvmlClocksEventReasonHwThermalSlowdown */
#define WITHOUT_INSTANCE          0xffffffffu

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

/* Which cards a set is of, and the last Xid of each that was passed on or was there before. */
typedef struct nvmlEventSet_st {
    bool of[ENGINE_CARDS];
    unsigned past[ENGINE_CARDS];
} *nvmlEventSet_t;

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(types);
    *types = XID_EVENT;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    STARTED;
    NEEDS(set);
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    STARTED;
    NEEDS(set);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(set);
    if (types & ~XID_EVENT)
        return NVML_ERROR_NOT_SUPPORTED;
    set->of[handle->device] = true;
    set->past[handle->device] = device->xid;
    return NVML_SUCCESS;
}

static bool happened(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (unsigned i = 0; i < rack->device_count; i++) {
        unsigned xid = rack->devices[i].xid;
        if (!set->of[i] || set->past[i] == xid)
            continue;
        set->past[i] = xid;
        if (!xid)
            continue;
        *data = (nvmlEventData_t){&whole[i], XID_EVENT, xid, WITHOUT_INSTANCE, WITHOUT_INSTANCE};
        return true;
    }
    return false;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds)
{
    enum { LOOK = 50 };
    STARTED;
    NEEDS(set && data);
    for (unsigned waited = 0;; waited += LOOK) {
        nvidia_refresh(rack);
        if (happened(set, data))
            return NVML_SUCCESS;
        if (waited >= milliseconds)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = LOOK * 1000000L}, NULL);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds)
{
    return nvmlEventSetWait_v2(set, data, milliseconds);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    ALIVE(device, handle);
    NEEDS(reasons);
    *reasons = strcmp(device->health, "hot") ? 0 : HARDWARE_THERMAL_SLOWDOWN;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons);
}
