/* What NVML says of memory, for programs that size themselves by it and for nvidia-smi: the grant. The rest of NVML is
 * untouched, and a grant that cannot be understood changes nothing: observation fails open. Also what we ask of NVML.
 */
#include "abi.h"
#include "shim.h"

#include "../core/ledger.h"
#include "../core/symbols.h"
#include "../core/tenant.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
#define OWN(name, ...) ROW_##name,
#define USED(name)     ROW_##name,
#include "api.def"
    ROWS
};

static struct symbol rows[ROWS] = {
#define OWN(name_, ...) [ROW_##name_] = {.name = #name_},
#define USED(name_)     [ROW_##name_] = {.name = #name_},
#include "api.def"
};

/* Other vendors give their management libraries NVML's names. */
static struct library library = {.name = "libnvidia-ml.so.1", .rows = rows, .count = ROWS, .copied = true};

#define REAL(name) ((typeof(&name))symbol_real(&library, &rows[ROW_##name]))

/* Of the device's own library, if it was found when the program began to use the device: threads of ours ask no more.
 */
#define KNOWN(name) ((typeof(&name))(library.resolved == RESOLVED_THERE ? symbol_known(&rows[ROW_##name]) : NULL))

void nvml_prepare(void)
{
    library_resolve(&library);
}

/* The grant's view of a device: false where the driver's own answer stands. */
static bool granted(nvmlDevice_t device, uint64_t *limit, uint64_t *used, bool *beyond)
{
    char uuid[96];
    typeof(&nvmlDeviceGetUUID) get_uuid = REAL(nvmlDeviceGetUUID);
    if (tenancy() != TENANCY_HELD || get_uuid == NULL || get_uuid(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return false;
    int ours = tenant_device_named(uuid);
    *limit = *used = 0;
    *beyond = false;
    if (ours == DEVICE_FOREIGN)
        return true;
    if (terms_policy(tenant_terms(ours)) == HETERO_POLICY_OFF || tenant_region() == NULL)
        return false;
    *limit = terms_memory(tenant_terms(ours));
    *beyond = (terms_flags(tenant_terms(ours)) & HETERO_FLAG_SPILL) != 0;
    *used = ledger_used(tenant_region(), (unsigned)ours);
    return true;
}

/* For both versions of the struct. */
#define SHOW_GRANT(memory)                                                                                             \
    do {                                                                                                               \
        uint64_t limit, used;                                                                                          \
        bool beyond;                                                                                                   \
        if (answer == NVML_SUCCESS && granted(device, &limit, &used, &beyond)) {                                       \
            uint64_t left = used < limit ? limit - used : 0;                                                           \
            (memory)->total = limit;                                                                                   \
            (memory)->used = used;                                                                                     \
            (memory)->free = (memory)->free < left && !beyond ? (memory)->free : left;                                 \
        }                                                                                                              \
    } while (0)

static nvmlReturn_t memory_info(nvmlReturn_t (*real)(nvmlDevice_t, nvmlMemory_t *), nvmlDevice_t device,
                                nvmlMemory_t *memory)
{
    nvmlReturn_t answer = real(device, memory);
    SHOW_GRANT(memory);
    return answer;
}

static nvmlReturn_t memory_info_v2(nvmlReturn_t (*real)(nvmlDevice_t, nvmlMemory_v2_t *), nvmlDevice_t device,
                                   nvmlMemory_v2_t *memory)
{
    nvmlReturn_t answer = real(device, memory);
    SHOW_GRANT(memory);
    return answer;
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

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
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
    uint64_t behind_ns = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
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

#define UNWRAP(...) __VA_ARGS__
#define OWN(name, parameters, arguments, body)                                                                         \
    __attribute__((visibility("default"))) nvmlReturn_t name parameters                                                \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        if (real == NULL)                                                                                              \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                                                      \
        if (__builtin_expect(tenancy() == TENANCY_FREE || library.resolved == RESOLVED_ANOTHERS, 1))                   \
            return real arguments;                                                                                     \
        return body(real, UNWRAP arguments);                                                                           \
    }
#define USED(name)
#include "api.def"

static void *const ours[ROWS] = {
#define OWN(name, ...) [ROW_##name] = (void *)name,
#define USED(name)
#include "api.def"
};

SYMBOLS(nvml, &library, ours);
