/* The fake NVML: the rack's cards in NVML's terms. Topology is in nvml_place.c, processes and utilization in
 * nvml_use.c, properties in nvml_card.c and MIG in nvml_mig.c. */
#include "nvml.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
struct nvidia *rack;                                     /* read once, kept when the library is shut down */
static unsigned open_count;                              /* calls of init not yet shut down */
static pid_t owner;                                      /* a forked child starts again */
struct nvmlDevice_st device_handles[ENGINE_CARDS], instance_handles[ENGINE_CARDS]; /* set with the rack */

static nvmlReturn_t init(void)
{
    pthread_mutex_lock(&lock);
    if (rack && owner != getpid()) {
        engine_forget(rack->engine);
        rack = NULL;
        open_count = 0;
    }
    if (!rack) {
        rack = nvidia_open();
        owner = getpid();
        for (unsigned i = 0; rack && i < rack->device_count; i++) {
            const struct nvidia_device *device = &rack->devices[i];
            device_handles[i] = (struct nvmlDevice_st){i, -1};
            for (unsigned j = 0; j < device->card_count; j++)
                instance_handles[device->first_card + j] = (struct nvmlDevice_st){i, (int)j};
        }
    }
    if (rack)
        nvidia_refresh(rack);
    if (rack && !fake_opened())
        fake_open();
    bool is_loaded = rack && rack->device_count; /* no card, no driver: as on a machine of another vendor */
    open_count += is_loaded;
    pthread_mutex_unlock(&lock);
    return is_loaded ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
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
    bool was_open = open_count > 0;
    open_count -= was_open;
    pthread_mutex_unlock(&lock);
    return was_open ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
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

bool nvml_started(void)
{
    return open_count > 0;
}

bool valid(nvmlDevice_t handle)
{
    return (handle >= device_handles && handle < device_handles + rack->device_count) ||
           (handle >= instance_handles && handle < instance_handles + rack->card_count &&
            rack->cards[handle - instance_handles].mig_slices);
}

const struct nvidia_card *card_of(nvmlDevice_t handle)
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
    return put(version, size, rack->driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    char text[96];
    STARTED;
    snprintf(text, sizeof text, "%d.%s", rack->cuda_version / 1000, rack->driver_version);
    return put(version, size, text);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    STARTED;
    NEEDS(version);
    *version = rack->cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

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

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
    STARTED;
    NEEDS(handle && index < rack->device_count);
    *handle = &device_handles[index];
    return faults_spare(fake_at(index)) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
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
            *handle = &device_handles[i];
            return NVML_SUCCESS;
        }
    for (unsigned i = 0; i < rack->card_count; i++)
        if (rack->cards[i].mig_slices && !strcmp(rack->cards[i].uuid, uuid)) {
            *handle = &instance_handles[i];
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
        const struct nvidia_device *nvidia_device = &rack->devices[i];
        if (nvidia_device->pci_domain == domain && nvidia_device->pci_bus == bus &&
            nvidia_device->pci_device == device) {
            *handle = &device_handles[i];
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

void pci_of(const struct nvidia_device *device, nvmlPciInfo_t *pci)
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

/* The struct of the second version ends before the long bus id. Writing more would overrun the caller's buffer. */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t current_info;
    FILLS_TEXT(pci, NVML_PCI_INFO_V2_SIZE);
    KNOWN(device, handle);
    NEEDS(pci);
    pci_of(device, &current_info);
    memset(current_info.busId, 0, sizeof current_info.busId);
    memcpy(pci, &current_info, NVML_PCI_INFO_V2_SIZE);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(handle, pci);
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
