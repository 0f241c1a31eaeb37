/* A libnvidia-ml.so.1 of two cards, for what the simulated driver does not have: every list names both cards, or this
 * process and another, whose pid is one more. With PIDS=host it lists processes as a driver does in a container that
 * knows no namespaces: under other pids. With MEMORY=no it does not say how much memory they have. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "../../limiters/nvml/abi.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct nvmlDevice_st {
    const char *uuid, *serial;
    unsigned bus;
};

static struct nvmlDevice_st cards[2] = {
    {"GPU-11111111-2222-3333-4444-555555555555", "100", 1},
    {"GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "200", 2},
};

static bool is_set(const char *name)
{
    return getenv(name) != NULL;
}

static unsigned pid_of(unsigned row)
{
    return (unsigned)getpid() + row + (is_set("PIDS") ? 1000000 : 0);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t answer)
{
    switch (answer) {
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
    return strlen(device->uuid) < size ? (strcpy(uuid, device->uuid), NVML_SUCCESS) : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t find(bool first, bool second, nvmlDevice_t *device)
{
    *device = first ? &cards[0] : &cards[1];
    return first || second ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return find(!strcmp(uuid, cards[0].uuid), !strcmp(uuid, cards[1].uuid), device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return find(!strcmp(serial, cards[0].serial), !strcmp(serial, cards[1].serial), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    return find(!strcmp(address, "00000000:01:00.0"), !strcmp(address, "00000000:02:00.0"), device);
}

nvmlReturn_t nvmlDeviceQueryDrainState(nvmlPciInfo_t *pci, nvmlEnableState_t *state)
{
    *state = NVML_FEATURE_DISABLED;
    return pci->bus == 1 || pci->bus == 2 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
    *count = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned index, nvmlExcludedDeviceInfo_t *info)
{
    return index == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* ------------------------------------------------------------------------------------------------------ lists of cards
 */

static nvmlReturn_t both(unsigned *count, nvmlDevice_t *devices)
{
    if (*count == 0)
        *count = 2;
    else
        for (unsigned i = 0; i < *count; i++)
            devices[i] = &cards[i];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned *count,
                                              nvmlDevice_t *devices)
{
    return both(count, devices);
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *devices)
{
    return both(count, devices);
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned *count, nvmlDevice_t *devices)
{
    unsigned room = *count;
    *count = 2;
    return room < 2 ? NVML_ERROR_INSUFFICIENT_SIZE : both(count, devices);
}

/* -------------------------------------------------------------------------------------------------- lists of processes
 */

/* Two rows of any of NVML's structs, with the pids in them. */
static nvmlReturn_t rows(void *out, size_t size, size_t pid, unsigned *count)
{
    unsigned room = *count;
    *count = 2;
    if (out == NULL || room < 2)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(out, 0, 2 * size);
    for (unsigned i = 0; i < 2; i++)
        memcpy((char *)out + i * size + pid, &(unsigned){pid_of(i)}, sizeof(unsigned));
    return NVML_SUCCESS;
}

#define ROWS(out, count) rows(out, sizeof *(out), (size_t)((char *)&(out)->pid - (char *)(out)), count)

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    nvmlReturn_t answer = ROWS(infos, count);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < 2; i++)
        infos[i].usedGpuMemory = is_set("MEMORY") ? NVML_VALUE_NOT_AVAILABLE : 1000 + i;
    return answer;
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
    return ROWS(infos, count);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    return ROWS(list->procArray, &list->numProcArrayEntries);
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned *size)
{
    *size = 2;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    return rows(pids, sizeof *pids, 0, count);
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, nvmlEncoderSessionInfo_t *sessions)
{
    return ROWS(sessions, count);
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned *count, nvmlFBCSessionInfo_t *sessions)
{
    return ROWS(sessions, count);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    return ROWS(info->procUtilArray, &info->processSamplesCount);
}

/* -------------------------------------------------------------------------------------------------------- utilization
 */

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long since)
{
    nvmlReturn_t answer = ROWS(samples, count);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < 2; i++)
        samples[i].smUtil = samples[i].memUtil = 30 + i;
    return answer;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    *rates = (nvmlUtilization_t){99, 99};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                                  nvmlValueType_t *value_type, unsigned *count, nvmlSample_t *samples)
{
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = 1;
    if (samples != NULL)
        *samples = (nvmlSample_t){1, {.uiVal = 99}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period)
{
    *percent = 99;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    support->isSupportedDevice = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    return NVML_SUCCESS;
}
