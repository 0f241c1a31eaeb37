/* The entry points: one exported function per line of api.def. Also the limiter's own calls of NVML (shim.h).
 *
 * A grant that cannot be read changes nothing here: observation fails open.
 */
#include "shim.h"

#include "bodies.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"
#include "../core/tenant.h"

#include <stdlib.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------ two stubs for every line
 */

#define EXPORT   __attribute__((visibility("default")))
#define AND(...) , ##__VA_ARGS__ /* no comma where there are no arguments */

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
        return body(real AND arguments);                                                                               \
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
 * opens it anew. So does one in which NVML was ended by a call past the limiter. */
static _Atomic pid_t opened_by_pid;

static bool open_nvml(void)
{
    typeof(&nvmlInit_v2) init = KNOWN(nvmlInit_v2);
    if (init == NULL || init() != NVML_SUCCESS)
        return false;
    atomic_store(&opened_by_pid, getpid());
    return true;
}

static bool find_known_device(const char *uuid, nvmlDevice_t *handle)
{
    typeof(&nvmlDeviceGetHandleByUUID) get_by_uuid = KNOWN(nvmlDeviceGetHandleByUUID);
    if (get_by_uuid == NULL || (atomic_load(&opened_by_pid) != getpid() && !open_nvml()))
        return false;
    nvmlReturn_t answer = get_by_uuid(uuid, handle);
    if (answer == NVML_ERROR_UNINITIALIZED && !FAULT(surplus_ends_passed_on) && open_nvml())
        answer = get_by_uuid(uuid, handle);
    return answer == NVML_SUCCESS;
}

/* Some drivers keep no samples, which are optional (power.h). */
static void read_samples(nvmlDevice_t handle, struct power_reading *reading)
{
    typeof(&nvmlDeviceGetSamples) get_samples = KNOWN(nvmlDeviceGetSamples);
    nvmlSample_t samples[POWER_SAMPLES];
    nvmlValueType_t type;
    reading->sample_count = POWER_SAMPLES;
    if (get_samples == NULL ||
        get_samples(handle, NVML_TOTAL_POWER_SAMPLES, 0, &type, &reading->sample_count, samples) != NVML_SUCCESS ||
        type != NVML_VALUE_TYPE_UNSIGNED_INT || reading->sample_count > POWER_SAMPLES)
        reading->sample_count = 0;
    uint64_t clock_offset_ns = nvml_clock_ns(CLOCK_REALTIME) - nvml_clock_ns(CLOCK_MONOTONIC);
    for (unsigned index = 0; index < reading->sample_count; index++) {
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
        reading->clock_units = read_clock(handle);
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

typedef nvmlReturn_t process_list(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *);

/* The processes in a list of NVML, however many there are; to be freed. NULL: it is not known. */
static nvmlProcessInfo_v2_t *read_processes(process_list *get_processes, nvmlDevice_t handle, unsigned *count)
{
    enum { FIRST_COUNT = 512, MAX_COUNT = 1 << 20, MARGIN = 64 }; /* more may come between two calls */
    nvmlProcessInfo_v2_t *processes = NULL;
    nvmlReturn_t answer = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned capacity = FIRST_COUNT; answer == NVML_ERROR_INSUFFICIENT_SIZE && capacity < MAX_COUNT;
         capacity = (*count > capacity ? *count : capacity) + MARGIN) {
        free(processes);
        processes = malloc(capacity * sizeof *processes);
        *count = capacity;
        answer = processes == NULL ? NVML_ERROR_UNKNOWN : get_processes(handle, count, processes);
    }
    if (answer == NVML_SUCCESS)
        return processes;
    free(processes);
    return NULL;
}

/* Whether a list has this process, with its bytes. */
static bool find_own_bytes(process_list *get_processes, nvmlDevice_t handle, uint64_t *bytes)
{
    unsigned count;
    nvmlProcessInfo_v2_t *processes = get_processes == NULL ? NULL : read_processes(get_processes, handle, &count);
    bool is_found = false;
    for (unsigned index = 0; processes != NULL && index < count; index++)
        if (processes[index].pid == (unsigned)getpid() && processes[index].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) {
            *bytes = processes[index].usedGpuMemory;
            is_found = true;
        }
    free(processes);
    return is_found;
}

/* A client of an MPS daemon, which may be the program's own, is in a list of its own. */
bool nvml_process_memory(const char *uuid, uint64_t *bytes)
{
    nvmlDevice_t handle;
    return find_known_device(uuid, &handle) &&
           (find_own_bytes(KNOWN(nvmlDeviceGetComputeRunningProcesses_v3), handle, bytes) ||
            find_own_bytes(KNOWN(nvmlDeviceGetMPSComputeRunningProcesses_v3), handle, bytes));
}
