/* The entry points: one exported function per line of api.def. Also the limiter's own calls of NVML (shim.h).
 *
 * A grant that cannot be read changes nothing here: observation fails open.
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

/* own_##name is what dlsym returns. The exported function is what a linked program calls; if it was linked to another
 * vendor's library of the same names, that library's function is called. */
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

static void *const answers[ROWS] = {
#define OWN(name, ...) [ROW_##name] = (void *)own_##name,
#define USED(name)
#include "api.def"
};

SYMBOLS(nvml, &nvml_library, answers);

/* ------------------------------------------------------------------------------------------ the limiter's own calls */

void nvml_prepare(void)
{
    library_resolve(&nvml_library);
}

/* The process that opened NVML for the limiter. It stays open, because opening takes milliseconds. A child of fork
 * opens it anew. */
static _Atomic pid_t opened_by_pid;

static bool find_known_device(const char *uuid, nvmlDevice_t *handle)
{
    typeof(&nvmlInit_v2) init = KNOWN(nvmlInit_v2);
    typeof(&nvmlDeviceGetHandleByUUID) get_by_uuid = KNOWN(nvmlDeviceGetHandleByUUID);
    if (init == NULL || get_by_uuid == NULL)
        return false;
    if (atomic_load(&opened_by_pid) != getpid()) {
        if (init() != NVML_SUCCESS)
            return false;
        atomic_store(&opened_by_pid, getpid());
    }
    return get_by_uuid(uuid, handle) == NVML_SUCCESS;
}

/* Some drivers keep no samples, which are optional (power.h). */
static void read_samples(nvmlDevice_t handle, struct power_reading *reading)
{
    typeof(&nvmlDeviceGetSamples) get_samples = KNOWN(nvmlDeviceGetSamples);
    nvmlSample_t samples[POWER_SAMPLES];
    nvmlValueType_t type;
    reading->count = POWER_SAMPLES;
    if (get_samples == NULL ||
        get_samples(handle, NVML_TOTAL_POWER_SAMPLES, 0, &type, &reading->count, samples) != NVML_SUCCESS ||
        type != NVML_VALUE_TYPE_UNSIGNED_INT || reading->count > POWER_SAMPLES)
        reading->count = 0;
    uint64_t clock_offset_ns = nvml_clock_ns(CLOCK_REALTIME) - nvml_clock_ns(CLOCK_MONOTONIC);
    for (unsigned index = 0; index < reading->count; index++) {
        reading->samples[index].at_ns = samples[index].timeStamp * 1000 - clock_offset_ns;
        reading->samples[index].mw = samples[index].sampleValue.uiVal;
    }
}

static uint32_t read_clock(nvmlDevice_t handle)
{
    typeof(&nvmlDeviceGetClockInfo) get_clock = KNOWN(nvmlDeviceGetClockInfo);
    typeof(&nvmlDeviceGetMaxClockInfo) get_max_clock = KNOWN(nvmlDeviceGetMaxClockInfo);
    typeof(&nvmlDeviceGetCurrentClocksThrottleReasons) get_reasons = KNOWN(nvmlDeviceGetCurrentClocksThrottleReasons);
    unsigned long long reason_bits = 0;
    unsigned now_mhz, max_mhz;
    bool is_lowered = get_clock != NULL && get_max_clock != NULL && get_reasons != NULL &&
                      get_reasons(handle, &reason_bits) == NVML_SUCCESS &&
                      (reason_bits & nvmlClocksEventReasonSwPowerCap) != 0 &&
                      get_clock(handle, NVML_CLOCK_SM, &now_mhz) == NVML_SUCCESS &&
                      get_max_clock(handle, NVML_CLOCK_SM, &max_mhz) == NVML_SUCCESS && now_mhz < max_mhz;
    return is_lowered ? now_mhz * POWER_UNITY / max_mhz : POWER_UNITY;
}

bool nvml_power(const char *uuid, struct power_reading *reading)
{
    typeof(&nvmlDeviceGetPowerUsage) get_power = KNOWN(nvmlDeviceGetPowerUsage);
    typeof(&nvmlDeviceGetEnforcedPowerLimit) get_limit = KNOWN(nvmlDeviceGetEnforcedPowerLimit);
    nvmlDevice_t handle;
    bool is_known = get_power != NULL && get_limit != NULL && find_known_device(uuid, &handle) &&
                    get_power(handle, &reading->mean_mw) == NVML_SUCCESS &&
                    get_limit(handle, &reading->limit_mw) == NVML_SUCCESS;
    if (is_known) {
        reading->clock = read_clock(handle);
        read_samples(handle, reading);
    }
    return is_known;
}

bool nvml_card_memory(const char *uuid, uint64_t *bytes)
{
    typeof(&nvmlDeviceGetMemoryInfo) get_info = KNOWN(nvmlDeviceGetMemoryInfo);
    nvmlDevice_t handle;
    nvmlMemory_t memory;
    bool is_known = get_info != NULL && find_known_device(uuid, &handle) && get_info(handle, &memory) == NVML_SUCCESS;
    if (is_known)
        *bytes = memory.used;
    return is_known;
}

bool nvml_process_memory(const char *uuid, uint64_t *bytes)
{
    enum { MAX_PROCESSES = 512 };
    typeof(&nvmlDeviceGetComputeRunningProcesses_v3) get_processes = KNOWN(nvmlDeviceGetComputeRunningProcesses_v3);
    nvmlDevice_t handle;
    unsigned count = MAX_PROCESSES;
    bool is_found = false;
    nvmlProcessInfo_v2_t *processes = malloc(MAX_PROCESSES * sizeof *processes);
    if (processes != NULL && get_processes != NULL && find_known_device(uuid, &handle) &&
        get_processes(handle, &count, processes) == NVML_SUCCESS)
        for (unsigned index = 0; index < count; index++)
            if (processes[index].pid == (unsigned)getpid() &&
                processes[index].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) {
                *bytes = processes[index].usedGpuMemory;
                is_found = true;
            }
    free(processes);
    return is_found;
}
