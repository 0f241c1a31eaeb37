/* The fake NVML: what a card is made of, and whether it is well. */
#include "nvml.h"

/* Health. A simulated card is whole, has an uncorrected memory error, is too hot (nvml_event.c), or it is lost. */

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, nvmlEnableState_t *mode)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(mode);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(current && pending);
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned type, unsigned counter,
                                                unsigned long long *count)
{
    ALIVE(device, handle);
    NEEDS(count && type < 2 && counter < 2);
    *count = type == 1 /* uncorrected */ && !strcmp(device->health, "ecc");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t handle, unsigned cause, unsigned *count,
                                                 unsigned long long *addresses, unsigned long long *stamps)
{
    (void)addresses, (void)stamps;
    ALIVE(device, handle);
    NEEDS(count && cause < 2);
    if (device->major >= 8) /* Ampere and later remap rows instead */
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned cause, unsigned *count,
                                              unsigned long long *addresses)
{
    return nvmlDeviceGetRetiredPages_v2(handle, cause, count, addresses, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, nvmlEnableState_t *pending)
{
    ALIVE(device, handle);
    NEEDS(pending);
    if (device->major >= 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *pending = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned *correctable, unsigned *uncorrectable,
                                              unsigned *pending, unsigned *failed)
{
    ALIVE(device, handle);
    NEEDS(correctable && uncorrectable && pending && failed);
    if (device->major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned type, unsigned counter,
                                                    unsigned location, unsigned long long *count)
{
    (void)location;
    return nvmlDeviceGetTotalEccErrors(handle, type, counter, count);
}

/* What it computes and draws with. */

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t handle, unsigned *cores)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(cores);
    bool few = device->major < 8 || (device->major == 8 && !device->minor); /* helper_cuda.h of CUDA's samples */
    *cores = device->multiprocessors * (few ? 64 : 128);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t handle, nvmlEnableState_t *active)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(active);
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t handle, nvmlEnableState_t *mode)
{
    return nvmlDeviceGetDisplayActive(handle, mode);
}

/* No figures by the sampler of Hopper and later: clients then ask for utilization. */
EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t *support)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(support);
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = 0;
    return NVML_SUCCESS;
}

/* What a rack does not say: fans, video engines, clocks and states of performance. */

static nvmlReturn_t unsaid(nvmlDevice_t handle)
{
    ALIVE(device, handle);
    (void)device;
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t handle, unsigned *percent)
{
    (void)percent;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned *percent, unsigned *period)
{
    (void)percent, (void)period;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned *percent, unsigned *period)
{
    (void)percent, (void)period;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t handle, int *state)
{
    (void)state;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t which, unsigned *megahertz)
{
    (void)which, (void)megahertz;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, nvmlClockType_t which, unsigned *megahertz)
{
    (void)which, (void)megahertz;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t handle, int *current, int *pending) /* Windows has them */
{
    (void)current, (void)pending;
    return unsaid(handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
    enum { RECOVERY_ACTION = 230 }; /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
    ALIVE(device, handle);
    NEEDS(count > 0 && values);
    nvidia_refresh(rack);
    for (int i = 0; i < count; i++) {
        bool is_known = values[i].fieldId == RECOVERY_ACTION && device->recovery_action >= 0;
        values[i].nvmlReturn = is_known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        if (is_known)
            values[i].value.uiVal = (unsigned)device->recovery_action;
    }
    return NVML_SUCCESS;
}
