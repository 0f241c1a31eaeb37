/* The fake libnvidia-ml.so.1: the rack's cards and who uses them, as NVML tells it. */
#include "../nvml/abi.h"
#include "nvidia.h"
#include "shelf.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#ifndef VENDOR
#define VENDOR "nvidia"
#endif
#ifndef LOST /* a card that is not well fell off the bus: NVML has no milder word for it */
#define LOST(health) strcmp(health, "ok")
#endif
#define NO_INSTANCE 0xffffffffu

struct nvmlDevice_st { /* a device, or a MIG instance of it */
    unsigned device;
    int instance; /* -1: the device itself */
};

const char shelf_vendor[] = VENDOR;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three below */
static struct nvidia *rack;                               /* read once, kept when the library is shut down */
static unsigned initialized;                              /* calls of init not yet shut down */
static pid_t owner;                                       /* a forked child starts again */
static struct nvmlDevice_st whole[ENGINE_CARDS], parts[ENGINE_CARDS]; /* parts: by card; set with the rack */

static nvmlReturn_t init(void)
{
    pthread_mutex_lock(&lock);
    if (rack && owner != getpid()) {
        engine_forget(rack->engine);
        rack = NULL;
        initialized = 0;
    }
    if (!rack) {
        rack = nvidia_open();
        owner = getpid();
        for (unsigned i = 0; rack && i < rack->device_count; i++) {
            const struct nvidia_device *device = &rack->devices[i];
            whole[i] = (struct nvmlDevice_st){i, -1};
            for (unsigned j = 0; j < device->cards; j++)
                parts[device->first_card + j] = (struct nvmlDevice_st){i, (int)j};
        }
    }
    if (rack && !shelf_opened())
        shelf_open();
    initialized += rack != NULL;
    pthread_mutex_unlock(&lock);
    return rack ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    FAULTS(NULL, NULL, 0);
    return init();
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    FAULTS(NULL, NULL, 0);
    return init();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    FAULTS(NULL, NULL, 0);
    return init();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    bool was = initialized > 0;
    initialized -= was;
    pthread_mutex_unlock(&lock);
    return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

/* What a call is about and what it fills in, for the faults it is told to show: unless it says otherwise, no card and
 * nothing. */
static const struct shelf_card *const about = NULL;
static void *const noise = NULL;
static const uint64_t noise_size = 0;
#define FILLS_TEXT(pointer, size)                                                                                      \
    void *const noise = (pointer);                                                                                     \
    const uint64_t noise_size = (size)
#define FILLS(pointer) FILLS_TEXT(pointer, sizeof *(pointer))

#define STARTED                                                                                                        \
    FAULTS(about, noise, noise_size);                                                                                  \
    if (!initialized)                                                                                                  \
    return NVML_ERROR_UNINITIALIZED
#define NEEDS(condition)                                                                                               \
    if (!(condition))                                                                                                  \
    return NVML_ERROR_INVALID_ARGUMENT

/* What NVML keeps in memory answers even for a card that fell off the bus; what it has to ask the card does not. */
#define KNOWN(name, handle)                                                                                            \
    const struct shelf_card *const about = initialized && valid(handle) ? shelf_at((handle)->device) : NULL;           \
    STARTED;                                                                                                           \
    NEEDS(valid(handle));                                                                                              \
    if (!shelf_present(about))                                                                                         \
        return NVML_ERROR_GPU_IS_LOST;                                                                                 \
    const struct nvidia_device *name = &rack->devices[(handle)->device]
#define ALIVE(name, handle)                                                                                            \
    KNOWN(name, handle);                                                                                               \
    if (LOST(name->health))                                                                                            \
    return NVML_ERROR_GPU_IS_LOST
#define WHOLE(handle)                                                                                                  \
    if ((handle)->instance >= 0)                                                                                       \
    return NVML_ERROR_NOT_SUPPORTED

static bool valid(nvmlDevice_t handle)
{
    return (handle >= whole && handle < whole + rack->device_count) ||
           (handle >= parts && handle < parts + rack->card_count && rack->cards[handle - parts].slices);
}

static const struct nvidia_card *card_of(nvmlDevice_t handle)
{
    return &rack->cards[rack->devices[handle->device].first_card + (unsigned)handle->instance];
}

static nvmlReturn_t put(char *to, unsigned size, const char *text)
{
    NEEDS(to);
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

/* Driver. */

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    FILLS_TEXT(version, size);
    STARTED;
    return put(version, size, rack->driver);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    char text[96];
    STARTED;
    snprintf(text, sizeof text, "%d.%s", rack->cuda / 1000, rack->driver);
    return put(version, size, text);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    STARTED;
    NEEDS(version);
    *version = rack->cuda;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    char path[32], text[256] = "";
    STARTED;
    NEEDS(name && size);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    (void)got;
    snprintf(name, size, "%s", text);
    return NVML_SUCCESS;
}

/* Devices. */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    FILLS(count);
    STARTED;
    NEEDS(count);
    *count = rack->device_count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
    STARTED;
    NEEDS(handle && index < rack->device_count);
    *handle = &whole[index];
    return shelf_present(shelf_at(index)) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    STARTED;
    NEEDS(uuid && handle);
    for (unsigned i = 0; i < rack->device_count; i++)
        if (!strcmp(rack->devices[i].uuid, uuid)) {
            *handle = &whole[i];
            return NVML_SUCCESS;
        }
    for (unsigned i = 0; i < rack->card_count; i++)
        if (rack->cards[i].slices && !strcmp(rack->cards[i].uuid, uuid)) {
            *handle = &parts[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *handle)
{
    unsigned domain, bus, device;
    STARTED;
    NEEDS(address && handle && sscanf(address, "%x:%x:%x", &domain, &bus, &device) == 3);
    for (unsigned i = 0; i < rack->device_count; i++) {
        const struct nvidia_device *it = &rack->devices[i];
        if (it->pci_domain == domain && it->pci_bus == bus && it->pci_device == device) {
            *handle = &whole[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *handle)
{
    return nvmlDeviceGetHandleByPciBusId_v2(address, handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned size)
{
    FILLS_TEXT(name, size);
    char text[96];
    KNOWN(device, handle);
    if (handle->instance >= 0)
        snprintf(text, sizeof text, "%s MIG %s", device->model, card_of(handle)->profile);
    else
        snprintf(text, sizeof text, "%s", device->model);
    return put(name, size, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned size)
{
    FILLS_TEXT(uuid, size);
    KNOWN(device, handle);
    return put(uuid, size, handle->instance >= 0 ? card_of(handle)->uuid : device->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    KNOWN(device, handle);
    (void)device;
    NEEDS(index);
    *index = handle->instance >= 0 ? (unsigned)handle->instance : handle->device;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor)
{
    FILLS(minor);
    KNOWN(device, handle);
    (void)device;
    NEEDS(minor);
    *minor = handle->device;
    return NVML_SUCCESS;
}

static void pci_of(const struct nvidia_device *device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = device->pci_domain;
    pci->bus = device->pci_bus;
    pci->device = device->pci_device;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff, pci->device & 0xff);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    FILLS(pci);
    KNOWN(device, handle);
    NEEDS(pci);
    pci_of(device, pci);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    FILLS(major);
    KNOWN(device, handle);
    NEEDS(major && minor);
    *major = device->major;
    *minor = device->minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, unsigned *mode)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(mode);
    *mode = 0;
    return NVML_SUCCESS;
}

/* Where it sits. A rack without `numa` is a machine whose driver does not say. */

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned *node)
{
    FILLS(node);
    ALIVE(device, handle);
    NEEDS(node);
    if (device->numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)device->numa;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned size, unsigned long *nodes,
                                                unsigned scope)
{
    (void)scope;
    ALIVE(device, handle);
    NEEDS(nodes && size);
    if (device->numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if ((unsigned)device->numa >= 64 * size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[device->numa / 64] = 1UL << (device->numa % 64);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned size, unsigned long *cpus)
{
    char path[64];
    unsigned low, high;
    ALIVE(device, handle);
    NEEDS(cpus && size);
    memset(cpus, 0, size * sizeof *cpus);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", device->numa);
    FILE *file = device->numa >= 0 ? fopen(path, "re") : NULL; /* this machine's node of that number, if it has one */
    if (!file)
        return NVML_ERROR_NOT_SUPPORTED;
    while (fscanf(file, "%u", &low) == 1) {
        high = low;
        int next = fgetc(file);
        if (next == '-' && fscanf(file, "%u", &high) == 1)
            next = fgetc(file);
        for (; low <= high && low < 64 * size; low++)
            cpus[low / 64] |= 1UL << (low % 64);
        if (next != ',')
            break;
    }
    fclose(file);
    return NVML_SUCCESS;
}

/* Memory and use. */

static uint64_t used_by(const struct nvidia_device *device, int instance)
{
    uint64_t used = 0;
    for (unsigned i = 0; i < device->cards; i++)
        if (instance < 0 || (unsigned)instance == i)
            used += engine_used(rack->engine, device->first_card + i);
    return used;
}

static void memory_of(const struct nvidia_device *device, nvmlDevice_t handle, nvmlMemory_t *memory)
{
    memory->total = handle->instance >= 0 ? card_of(handle)->memory : device->memory;
    memory->used = used_by(device, handle->instance);
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
    *memory = (nvmlMemory_v2_t){nvmlMemory_v2, plain.total, 0, plain.free, plain.used};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(memory);
    *memory = (nvmlBAR1Memory_t){device->memory, device->memory, 0};
    return NVML_SUCCESS;
}

struct user { /* of a device */
    struct engine_tenant tenant;
    unsigned instance; /* NO_INSTANCE: of the whole */
};

/* The processes on a device, or on the one instance. */
static unsigned users_of(const struct nvidia_device *device, int instance, struct user users[8 * ENGINE_TENANTS])
{
    unsigned count = 0;
    for (unsigned i = 0; i < device->cards && i < 8; i++) {
        struct engine_tenant tenants[ENGINE_TENANTS];
        if (instance >= 0 && (unsigned)instance != i)
            continue;
        unsigned found = engine_tenants(rack->engine, device->first_card + i, tenants);
        for (unsigned j = 0; j < found; j++)
            users[count++] = (struct user){tenants[j], device->mig ? i : NO_INSTANCE};
    }
    return count;
}

static unsigned percent(double share) { return share >= 1 ? 100 : (unsigned)(share * 100 + 0.5); }

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    FILLS(utilization);
    ALIVE(device, handle);
    NEEDS(utilization);
    if (device->mig) /* as NVML has it */
        return NVML_ERROR_NOT_SUPPORTED;
    struct user users[8 * ENGINE_TENANTS];
    unsigned count = users_of(device, -1, users);
    double busy = 0;
    for (unsigned i = 0; i < count; i++)
        busy += users[i].tenant.busy;
    *utilization = (nvmlUtilization_t){.gpu = percent(busy), .memory = 0};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since)
{
    ALIVE(device, handle);
    NEEDS(count);
    if (device->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long stamp = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    struct user users[8 * ENGINE_TENANTS];
    unsigned found = users_of(device, -1, users), room = *count;
    if (!found || stamp <= since)
        return NVML_ERROR_NOT_FOUND;
    *count = found;
    if (!samples || room < found)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = (unsigned)users[i].tenant.pid, .timeStamp = stamp,
                                                      .smUtil = percent(users[i].tenant.busy)};
    return NVML_SUCCESS;
}

static nvmlReturn_t processes(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_v1_t *old,
                              nvmlProcessInfo_v2_t *now)
{
    ALIVE(device, handle);
    NEEDS(count);
    struct user users[8 * ENGINE_TENANTS];
    unsigned found = users_of(device, handle->instance, users), room = *count;
    *count = found;
    if (found && ((!old && !now) || room < found))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        unsigned pid = (unsigned)users[i].tenant.pid, part = users[i].instance;
        uint64_t memory = users[i].tenant.memory;
        if (old)
            old[i] = (nvmlProcessInfo_v1_t){pid, memory};
        else
            now[i] = (nvmlProcessInfo_v2_t){pid, memory, part == NO_INSTANCE ? part : part + 1,
                                            part == NO_INSTANCE ? part : 0};
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned *count,
                                                         nvmlProcessInfo_v1_t *out)
{
    FAULTS(about, count, sizeof *count);
    return processes(handle, count, out, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_v2_t *out)
{
    FAULTS(about, count, sizeof *count);
    return processes(handle, count, NULL, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_v2_t *out)
{
    FAULTS(about, count, sizeof *count);
    return processes(handle, count, NULL, out);
}

static nvmlReturn_t nobody(nvmlDevice_t handle, unsigned *count) /* draws on these cards */
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

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_v1_t *list)
{
    ALIVE(device, handle);
    NEEDS(list);
    if (list->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct user users[8 * ENGINE_TENANTS];
    bool compute = list->mode == 0 || list->mode == 3;
    unsigned found = compute ? users_of(device, handle->instance, users) : 0, room = list->numProcArrayEntries;
    list->numProcArrayEntries = found;
    if (found && (!list->procArray || room < found))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        unsigned part = users[i].instance;
        list->procArray[i] = (nvmlProcessDetail_v1_t){(unsigned)users[i].tenant.pid, users[i].tenant.memory,
                                                      part == NO_INSTANCE ? part : part + 1,
                                                      part == NO_INSTANCE ? part : 0, 0};
    }
    return NVML_SUCCESS;
}

/* Links. */

static const struct nvidia_link *between(nvmlDevice_t one, nvmlDevice_t other)
{
    return &rack->devices[one->device].links[other->device];
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                        nvmlGpuTopologyLevel_t *level)
{
    FILLS(level);
    ALIVE(device, one);
    NEEDS(valid(other) && level);
    (void)device;
    *level = (nvmlGpuTopologyLevel_t)between(one, other)->path;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t capability,
                                           nvmlGpuP2PStatus_t *status)
{
    ALIVE(device, one);
    NEEDS(valid(other) && status);
    (void)device;
    const struct nvidia_link *link = between(one, other);
    bool near = link->path <= PATH_PXB, wire = link->nvlinks > 0;
    bool can = capability == NVML_P2P_CAPS_INDEX_NVLINK || capability == NVML_P2P_CAPS_INDEX_ATOMICS ? wire
               : capability == NVML_P2P_CAPS_INDEX_PCI                                               ? near
                                                                                                     : near || wire;
    *status = can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* The card at the far end of a device's link: its links are numbered peer after peer. */
static int far_end(const struct nvidia_device *device, unsigned link)
{
    for (unsigned peer = 0; peer < rack->device_count; peer++) {
        if (link < device->links[peer].nvlinks)
            return (int)peer;
        link -= device->links[peer].nvlinks;
    }
    return -1;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, nvmlEnableState_t *state)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(state && link < NVML_NVLINK_MAX_LINKS);
    if (far_end(device, 0) < 0) /* a card without NVLink */
        return NVML_ERROR_NOT_SUPPORTED;
    *state = far_end(device, link) >= 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t *pci)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(pci && link < NVML_NVLINK_MAX_LINKS);
    int peer = far_end(device, link);
    if (peer < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    pci_of(&rack->devices[peer], pci);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned link,
                                                        nvmlIntNvLinkDeviceType_t *type)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(type && link < NVML_NVLINK_MAX_LINKS);
    if (far_end(device, link) < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *type = NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

/* MIG. */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(current && pending);
    if (device->major < 8) /* came with Ampere */
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = device->mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count)
{
    ALIVE(device, handle);
    NEEDS(count);
    *count = device->mig ? 7 : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *instance)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(instance && index < 7);
    if (!device->mig || index >= device->cards)
        return NVML_ERROR_NOT_FOUND;
    *instance = &parts[device->first_card + index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *handle)
{
    KNOWN(device, instance);
    (void)device;
    NEEDS(handle && instance->instance >= 0);
    *handle = &whole[instance->device];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is)
{
    KNOWN(device, handle);
    (void)device;
    NEEDS(is);
    *is = handle->instance >= 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned *id)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(id && handle->instance >= 0);
    *id = (unsigned)handle->instance + 1; /* 0 is the whole card's */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned *id)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(id && handle->instance >= 0);
    *id = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    ALIVE(device, handle);
    NEEDS(attributes);
    if (handle->instance < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct nvidia_card *card = card_of(handle);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = device->multiprocessors / 8 * card->slices,
        .sharedCopyEngineCount = card->slices,
        .gpuInstanceSliceCount = card->slices,
        .computeInstanceSliceCount = card->slices,
        .memorySizeMB = card->memory >> 20,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(handle, attributes);
}

/* Health. A simulated card is whole, or it is lost. */

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
    (void)device;
    NEEDS(count && type < 2 && counter < 2);
    *count = 0;
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
