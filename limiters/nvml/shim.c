/* Getting in: the exported functions, one per line of api.def. Also what the limiter itself asks of NVML (shim.h).
 *
 * A grant that cannot be understood changes nothing: observation fails open.
 */
#include "shim.h"

#include "bodies.h"
#include "device.h"
#include "driver.h"

#include "../core/tenant.h"

#include <stdlib.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------ two stubs for every line
 */

#define EXPORT      __attribute__((visibility("default")))
#define UNWRAP(...) __VA_ARGS__

/* What dlsym gives of this library's name, and what a program that was linked to it calls; one that was linked to
 * another vendor's library of the same names calls that. */
#define OWN(name, parameters, arguments, body)                                                                         \
    static nvmlReturn_t own_##name parameters                                                                          \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        if (real == NULL)                                                                                              \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                                                      \
        if (__builtin_expect(tenancy() != TENANCY_HELD, 1))                                                            \
            return real arguments;                                                                                     \
        return body(real, UNWRAP arguments);                                                                           \
    }                                                                                                                  \
    EXPORT nvmlReturn_t name parameters                                                                                \
    {                                                                                                                  \
        typeof(&name) called = symbol_of_other_library(&nvml_library, &nvml_rows[ROW_##name],                          \
                                                       __builtin_return_address(0));                                   \
        return called != NULL ? called arguments : own_##name arguments;                                               \
    }
#define USED(name)
#include "api.def"

static void *const ours[ROWS] = {
#define OWN(name, ...) [ROW_##name] = (void *)own_##name,
#define USED(name)
#include "api.def"
};

SYMBOLS(nvml, &nvml_library, ours);

/* ------------------------------------------------------------------------------------------- what the limiter asks */

void nvml_prepare(void)
{
    library_resolve(&nvml_library);
}

/* The process that has NVML open for us, for good: opening takes it milliseconds. A child of fork opens its own. */
static _Atomic pid_t opened;

static bool find(const char *uuid, nvmlDevice_t *device)
{
    typeof(&nvmlInit_v2) init = KNOWN(nvmlInit_v2);
    typeof(&nvmlDeviceGetHandleByUUID) by_uuid = KNOWN(nvmlDeviceGetHandleByUUID);
    if (init == NULL || by_uuid == NULL)
        return false;
    if (atomic_load(&opened) != getpid()) {
        if (init() != NVML_SUCCESS)
            return false;
        atomic_store(&opened, getpid());
    }
    return by_uuid(uuid, device) == NVML_SUCCESS;
}

/* Not every driver keeps samples, and none are missed much (power.h). */
static void read_samples(nvmlDevice_t device, struct power_reading *reading)
{
    typeof(&nvmlDeviceGetSamples) real = KNOWN(nvmlDeviceGetSamples);
    nvmlSample_t samples[POWER_SAMPLES];
    nvmlValueType_t type;
    reading->count = POWER_SAMPLES;
    if (real == NULL || real(device, NVML_TOTAL_POWER_SAMPLES, 0, &type, &reading->count, samples) != NVML_SUCCESS ||
        type != NVML_VALUE_TYPE_UNSIGNED_INT || reading->count > POWER_SAMPLES)
        reading->count = 0;
    uint64_t behind_ns = nvml_clock_ns(CLOCK_REALTIME) - nvml_clock_ns(CLOCK_MONOTONIC);
    for (unsigned i = 0; i < reading->count; i++) {
        reading->samples[i].at_ns = samples[i].timeStamp * 1000 - behind_ns;
        reading->samples[i].mw = samples[i].sampleValue.uiVal;
    }
}

static uint32_t read_clock(nvmlDevice_t device)
{
    typeof(&nvmlDeviceGetClockInfo) clock = KNOWN(nvmlDeviceGetClockInfo);
    typeof(&nvmlDeviceGetMaxClockInfo) most = KNOWN(nvmlDeviceGetMaxClockInfo);
    typeof(&nvmlDeviceGetCurrentClocksThrottleReasons) reasons = KNOWN(nvmlDeviceGetCurrentClocksThrottleReasons);
    unsigned long long why = 0;
    unsigned now_mhz, most_mhz;
    bool lowered = clock != NULL && most != NULL && reasons != NULL && reasons(device, &why) == NVML_SUCCESS &&
                   (why & nvmlClocksEventReasonSwPowerCap) != 0 &&
                   clock(device, NVML_CLOCK_SM, &now_mhz) == NVML_SUCCESS &&
                   most(device, NVML_CLOCK_SM, &most_mhz) == NVML_SUCCESS && now_mhz < most_mhz;
    return lowered ? now_mhz * POWER_UNITY / most_mhz : POWER_UNITY;
}

bool nvml_power(const char *uuid, struct power_reading *reading)
{
    typeof(&nvmlDeviceGetPowerUsage) power = KNOWN(nvmlDeviceGetPowerUsage);
    typeof(&nvmlDeviceGetEnforcedPowerLimit) limit = KNOWN(nvmlDeviceGetEnforcedPowerLimit);
    nvmlDevice_t device;
    bool known = power != NULL && limit != NULL && find(uuid, &device) &&
                 power(device, &reading->mean_mw) == NVML_SUCCESS && limit(device, &reading->limit_mw) == NVML_SUCCESS;
    if (known) {
        reading->clock = read_clock(device);
        read_samples(device, reading);
    }
    return known;
}

bool nvml_card_memory(const char *uuid, uint64_t *bytes)
{
    typeof(&nvmlDeviceGetMemoryInfo) info = KNOWN(nvmlDeviceGetMemoryInfo);
    nvmlDevice_t device;
    nvmlMemory_t memory;
    bool known = info != NULL && find(uuid, &device) && info(device, &memory) == NVML_SUCCESS;
    if (known)
        *bytes = memory.used;
    return known;
}

bool nvml_process_memory(const char *uuid, uint64_t *bytes)
{
    enum { MOST = 512 };
    typeof(&nvmlDeviceGetComputeRunningProcesses_v3) list = KNOWN(nvmlDeviceGetComputeRunningProcesses_v3);
    nvmlDevice_t device;
    unsigned count = MOST;
    bool found = false;
    nvmlProcessInfo_v2_t *processes = malloc(MOST * sizeof *processes);
    if (processes != NULL && list != NULL && find(uuid, &device) && list(device, &count, processes) == NVML_SUCCESS)
        for (unsigned i = 0; i < count; i++)
            if (processes[i].pid == (unsigned)getpid() && processes[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) {
                *bytes = processes[i].usedGpuMemory;
                found = true;
            }
    free(processes);
    return found;
}
