/* The fake NVML: how much of a card is used, and by whom. */
#include "nvml.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NO_INSTANCE 0xffffffffu

static uint64_t used_by(const struct nvidia_device *device, int instance)
{
    uint64_t used_bytes = 0;
    for (unsigned i = 0; i < device->card_count; i++)
        if (instance < 0 || (unsigned)instance == i)
            used_bytes += engine_used(rack->engine, device->first_card + i);
    return used_bytes;
}

static uint64_t reserved_of(const struct nvidia_device *device, nvmlDevice_t handle)
{
    return handle->instance >= 0 ? 0 : device->reserved_bytes;
}

/* As in the first version: reserved memory counts as used. */
static void memory_of(const struct nvidia_device *device, nvmlDevice_t handle, nvmlMemory_t *memory)
{
    memory->total = handle->instance >= 0 ? card_of(handle)->memory_bytes
                                          : device->memory_bytes + device->reserved_bytes;
    memory->used = used_by(device, handle->instance) + reserved_of(device, handle);
    memory->free = memory->total - memory->used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    FILLS(memory);
    ALIVE(device, handle);
    NEEDS(memory);
    memory_of(device, handle, memory);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    FILLS(memory);
    ALIVE(device, handle);
    NEEDS(memory);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlMemory_t plain;
    memory_of(device, handle, &plain);
    uint64_t reserved = reserved_of(device, handle);
    *memory = (nvmlMemory_v2_t){nvmlMemory_v2, plain.total, reserved, plain.free, plain.used - reserved};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    ALIVE(device, handle);
    NEEDS(memory);
    uint64_t size = handle->instance >= 0 ? card_of(handle)->memory_bytes
                                          : device->memory_bytes + device->reserved_bytes;
    *memory = (nvmlBAR1Memory_t){size, size, 0};
    return NVML_SUCCESS;
}

struct user { /* of a device */
    struct engine_tenant tenant;
    unsigned instance; /* NO_INSTANCE: of the whole */
};

static void free_users(struct user **users)
{
    free(*users);
}

/* Room for the users of a device, until the end of the block: threads may have a stack of 64 KiB. */
#define USERS(name)                                                                                                    \
    struct user *name __attribute__((cleanup(free_users))) = malloc(8 * ENGINE_TENANTS * sizeof *name);                \
    if (name == NULL)                                                                                                  \
    return NVML_ERROR_UNKNOWN

/* The processes on a device, or on the one instance. */
static unsigned users_of(const struct nvidia_device *device, int instance, struct user users[8 * ENGINE_TENANTS])
{
    unsigned count = 0;
    for (unsigned i = 0; i < device->card_count && i < 8; i++) {
        struct engine_tenant tenants[ENGINE_TENANTS];
        if (instance >= 0 && (unsigned)instance != i)
            continue;
        unsigned tenant_count = engine_tenants(rack->engine, device->first_card + i, tenants);
        for (unsigned j = 0; j < tenant_count; j++)
            users[count++] = (struct user){tenants[j], device->is_mig ? i : NO_INSTANCE};
    }
    return count;
}

/* The processes whose PIDs the caller can see. Lists have no others. */
static unsigned visible_users_of(const struct nvidia_device *device, int instance,
                                 struct user users[8 * ENGINE_TENANTS])
{
    unsigned user_count = users_of(device, instance, users), visible_count = 0;
    for (unsigned i = 0; i < user_count; i++)
        if (users[i].tenant.pid)
            users[visible_count++] = users[i];
    return visible_count;
}

static unsigned percent(double fraction)
{
    return fraction >= 1 ? 100 : (unsigned)(fraction * 100 + 0.5);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    FILLS(utilization);
    ALIVE(device, handle);
    NEEDS(utilization);
    if (device->is_mig) /* as in NVML */
        return NVML_ERROR_NOT_SUPPORTED;
    USERS(users);
    unsigned count = users_of(device, -1, users);
    double busy_share = 0;
    for (unsigned i = 0; i < count; i++)
        busy_share += users[i].tenant.busy_share;
    *utilization = (nvmlUtilization_t){.gpu = percent(busy_share), .memory = 0};
    return NVML_SUCCESS;
}

static nvmlReturn_t power_of(unsigned watts, unsigned *milliwatts)
{
    NEEDS(milliwatts);
    if (!watts)
        return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = watts * 1000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *milliwatts)
{
    FILLS(milliwatts);
    ALIVE(device, handle);
    return power_of(device->power_w, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned *milliwatts)
{
    FILLS(milliwatts);
    ALIVE(device, handle);
    return power_of(device->power_limit_w, milliwatts);
}

/* No other limit is set than the card's default. */
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned *milliwatts)
{
    return nvmlDeviceGetEnforcedPowerLimit(handle, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t handle, unsigned *milliwatts)
{
    return nvmlDeviceGetEnforcedPowerLimit(handle, milliwatts);
}

/* Sensor 0 is the die's (NVML_TEMPERATURE_GPU), the only one there is. */
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned *degrees)
{
    FILLS(degrees);
    ALIVE(device, handle);
    NEEDS(degrees);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->temperature_c)
        return NVML_ERROR_NOT_SUPPORTED;
    *degrees = device->temperature_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t *temperature)
{
    unsigned degrees;
    STARTED;
    NEEDS(temperature);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetTemperature(handle, temperature->sensorType, &degrees);
    if (result == NVML_SUCCESS)
        temperature->temperature = (int)degrees;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since_us)
{
    ALIVE(device, handle);
    NEEDS(count);
    if (device->is_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    unsigned long long stamp_us = (unsigned long long)time.tv_sec * 1000000 + (unsigned long long)time.tv_nsec / 1000;
    USERS(users);
    unsigned user_count = visible_users_of(device, -1, users), capacity = *count;
    if (!user_count || stamp_us <= since_us)
        return NVML_ERROR_NOT_FOUND;
    *count = user_count;
    if (!samples || capacity < user_count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < user_count; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = (unsigned)users[i].tenant.pid, .timeStamp = stamp_us, .smUtil = percent(users[i].tenant.busy_share)};
    return NVML_SUCCESS;
}

static nvmlReturn_t processes(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_v1_t *infos_v1,
                              nvmlProcessInfo_v2_t *infos_v2)
{
    ALIVE(device, handle);
    NEEDS(count);
    USERS(users);
    unsigned user_count = visible_users_of(device, handle->instance, users), capacity = *count;
    *count = user_count;
    if (user_count && ((!infos_v1 && !infos_v2) || capacity < user_count))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < user_count; i++) {
        unsigned pid = (unsigned)users[i].tenant.pid, instance = users[i].instance;
        uint64_t memory = users[i].tenant.memory_bytes;
        if (infos_v1)
            infos_v1[i] = (nvmlProcessInfo_v1_t){pid, memory};
        else
            infos_v2[i] = (nvmlProcessInfo_v2_t){pid, memory, instance == NO_INSTANCE ? instance : instance + 1,
                                                 instance == NO_INSTANCE ? instance : 0};
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned *count,
                                                         nvmlProcessInfo_v1_t *out)
{
    FAULTS(called_card, count, sizeof *count);
    return processes(handle, count, out, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_v2_t *out)
{
    FAULTS(called_card, count, sizeof *count);
    return processes(handle, count, NULL, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_v2_t *out)
{
    FAULTS(called_card, count, sizeof *count);
    return processes(handle, count, NULL, out);
}

static nvmlReturn_t nobody(nvmlDevice_t handle, unsigned *count) /* draws on these cards, or uses MPS */
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(count);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t handle, unsigned *count,
                                                          nvmlProcessInfo_v1_t *out)
{
    (void)out;
    return nobody(handle, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                             nvmlProcessInfo_v2_t *out)
{
    (void)out;
    return nobody(handle, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                             nvmlProcessInfo_v2_t *out)
{
    (void)out;
    return nobody(handle, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                               nvmlProcessInfo_v2_t *out)
{
    (void)out;
    return nobody(handle, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_v1_t *list)
{
    ALIVE(device, handle);
    NEEDS(list);
    if (list->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    USERS(users);
    bool compute = list->mode == 0 || list->mode == 3;
    unsigned user_count = compute ? visible_users_of(device, handle->instance, users) : 0,
             capacity = list->numProcArrayEntries;
    list->numProcArrayEntries = user_count;
    if (user_count && (!list->procArray || capacity < user_count))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < user_count; i++) {
        unsigned instance = users[i].instance;
        list->procArray[i] = (nvmlProcessDetail_v1_t){(unsigned)users[i].tenant.pid, users[i].tenant.memory_bytes,
                                                      instance == NO_INSTANCE ? instance : instance + 1,
                                                      instance == NO_INSTANCE ? instance : 0, 0};
    }
    return NVML_SUCCESS;
}
