/* The fake libmtml: the memory of its cards, how busy they are, and what they draw. */
#include "mtml_card.h"

EXPORT MtmlReturn mtmlDeviceInitMemory(const MtmlDevice *dev, MtmlMemory **mem)
{
    HANDLE(devices, dev, mem);
    *mem = &memories[position];
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceFreeMemory(MtmlMemory *mem)
{
    HANDLE(memories, mem, mem);
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlMemoryGetTotal(const MtmlMemory *mem, unsigned long long *total)
{
    HANDLE(memories, mem, total);
    *total = card->memory_bytes;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlMemoryGetUsed(const MtmlMemory *mem, unsigned long long *used)
{
    HANDLE(memories, mem, used);
    *used = card->used_bytes;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlMemoryGetEccMode(const MtmlMemory *mem, MtmlEccMode *current, MtmlEccMode *pending)
{
    HANDLE(memories, mem, current);
    if (!pending)
        return MTML_ERROR_INVALID_ARGUMENT;
    *current = *pending = MTML_MEMORY_ECC_ENABLE;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlMemoryGetEccErrorCounter(const MtmlMemory *mem, MtmlMemoryErrorType type,
                                               MtmlEccCounterType counter, MtmlMemoryLocation location,
                                               unsigned long long *count)
{
    HANDLE(memories, mem, count);
    if (type > MTML_MEMORY_ERROR_TYPE_UNCORRECTED || counter > MTML_AGGREGATE_ECC ||
        location != MTML_MEMORY_LOCATION_DRAM)
        return MTML_ERROR_INVALID_ARGUMENT;
    *count = type == MTML_MEMORY_ERROR_TYPE_UNCORRECTED && strcmp(card->health, "ok");
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlMemoryGetRetiredPagesPendingStatus(const MtmlMemory *mem, MtmlPagesPending *pending)
{
    HANDLE(memories, mem, pending);
    bool well = !strcmp(card->health, "ok");
    *pending = well ? MTML_RETIRED_PAGES_PENDING_STATE_FALSE : MTML_RETIRED_PAGES_PENDING_STATE_TRUE;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceInitGpu(const MtmlDevice *dev, MtmlGpu **gpu)
{
    HANDLE(devices, dev, gpu);
    *gpu = &gpus[position];
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceFreeGpu(MtmlGpu *gpu)
{
    HANDLE(gpus, gpu, gpu);
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlGpuGetUtilization(const MtmlGpu *gpu, unsigned int *utilization)
{
    HANDLE(gpus, gpu, utilization);
    *utilization = card->busy_percent;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlGpuGetTemperature(const MtmlGpu *gpu, unsigned int *temp)
{
    HANDLE(gpus, gpu, temp);
    *temp = card->temperature_c;
    return card->temperature_c ? MTML_SUCCESS : MTML_ERROR_NOT_SUPPORTED;
}

EXPORT MtmlReturn mtmlDeviceGetPowerUsage(const MtmlDevice *dev, unsigned int *power)
{
    HANDLE(devices, dev, power);
    *power = card->power_w * 1000; /* mW */
    return card->power_w ? MTML_SUCCESS : MTML_ERROR_NOT_SUPPORTED;
}
