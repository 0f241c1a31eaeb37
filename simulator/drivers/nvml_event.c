/* The fake NVML: events, and reasons why a card is slowed down. The rack is read again for both, so that a test can
 * cause them: `xid = 48` is a card's last Xid, and `health = hot` a card that is too hot. */
#include "nvml.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

/* Declarations of nvml.h that the limiter's abi.h lacks. */
#define NVML_ERROR_TIMEOUT        ((nvmlReturn_t)10)
#define XID_EVENT                 0x8ULL  /* nvmlEventTypeXidCriticalError */
#define HARDWARE_THERMAL_SLOWDOWN 0x40ULL /* nvmlClocksEventReasonHwThermalSlowdown */
#define WITHOUT_INSTANCE          0xffffffffu

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

/* The cards of a set, and by card the last Xid that was reported or that was there before. */
typedef struct nvmlEventSet_st {
    bool has_device[ENGINE_CARDS];
    unsigned last_xids[ENGINE_CARDS];
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
    set->has_device[handle->device] = true;
    set->last_xids[handle->device] = device->last_xid;
    return NVML_SUCCESS;
}

static bool happened(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (unsigned i = 0; i < rack->device_count; i++) {
        unsigned xid = rack->devices[i].last_xid;
        if (!set->has_device[i] || set->last_xids[i] == xid)
            continue;
        set->last_xids[i] = xid;
        if (!xid)
            continue;
        *data = (nvmlEventData_t){&device_handles[i], XID_EVENT, xid, WITHOUT_INSTANCE, WITHOUT_INSTANCE};
        return true;
    }
    return false;
}

static uint64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* A descriptor that reports changes of the rack's file: it is written, or another file takes its name. -1: none. */
static int changes_of_rack(void)
{
    int changes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (changes >= 0)
        inotify_add_watch(changes, getenv("HETERO_RACK"), IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF);
    return changes;
}

/* Takes no processor time while nothing happens, as a card's driver: heterod's processor time is measured on it. */
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    enum { ANYWAY_MS = 10000 }; /* in case a change is not reported */
    STARTED;
    NEEDS(set && data);
    for (uint64_t deadline_ms = now_ms() + timeout_ms;;) {
        struct pollfd changes = {.fd = changes_of_rack(), .events = POLLIN};
        nvidia_refresh(rack);
        bool has_event = happened(set, data);
        uint64_t time_ms = now_ms();
        if (!has_event && time_ms < deadline_ms)
            poll(&changes, 1, deadline_ms - time_ms < ANYWAY_MS ? (int)(deadline_ms - time_ms) : ANYWAY_MS);
        if (changes.fd >= 0)
            close(changes.fd);
        if (has_event || time_ms >= deadline_ms)
            return has_event ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
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
