/* The fake NVML: where cards sit, and what lies between them. */
#include "nvml.h"

/* Where it sits. A rack without `numa` is a machine whose driver does not say. */

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned *node)
{
    FILLS(node);
    ALIVE(device, handle);
    NEEDS(node);
    if (device->numa_node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)device->numa_node;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned size, unsigned long *nodes,
                                                unsigned scope)
{
    (void)scope;
    ALIVE(device, handle);
    NEEDS(nodes && size);
    if (device->numa_node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if ((unsigned)device->numa_node >= 64 * size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[device->numa_node / 64] = 1UL << (device->numa_node % 64);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned size, unsigned long *cpus)
{
    char path[64];
    unsigned first_cpu, last_cpu;
    ALIVE(device, handle);
    NEEDS(cpus && size);
    memset(cpus, 0, size * sizeof *cpus);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", device->numa_node);
    FILE *file = device->numa_node >= 0 ? fopen(path, "re")
                                        : NULL; /* this machine's node of that number, if it has one */
    if (!file)
        return NVML_ERROR_NOT_SUPPORTED;
    while (fscanf(file, "%u", &first_cpu) == 1) {
        last_cpu = first_cpu;
        int separator = fgetc(file);
        if (separator == '-' && fscanf(file, "%u", &last_cpu) == 1)
            separator = fgetc(file);
        for (; first_cpu <= last_cpu && first_cpu < 64 * size; first_cpu++)
            cpus[first_cpu / 64] |= 1UL << (first_cpu % 64);
        if (separator != ',')
            break;
    }
    fclose(file);
    return NVML_SUCCESS;
}

/* Links. */

static const struct nvidia_link *between(nvmlDevice_t first, nvmlDevice_t second)
{
    return &rack->devices[first->device].links[second->device];
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                        nvmlGpuTopologyLevel_t *level)
{
    FILLS(level);
    ALIVE(device, first);
    NEEDS(valid(second) && level);
    (void)device;
    *level = (nvmlGpuTopologyLevel_t)between(first, second)->path;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, nvmlGpuP2PCapsIndex_t capability,
                                           nvmlGpuP2PStatus_t *status)
{
    ALIVE(device, first);
    NEEDS(valid(second) && status);
    (void)device;
    const struct nvidia_link *link = between(first, second);
    bool is_near = link->path <= PATH_PXB, wire = link->nvlink_count > 0;
    bool is_supported = capability == NVML_P2P_CAPS_INDEX_NVLINK || capability == NVML_P2P_CAPS_INDEX_ATOMICS ? wire
                        : capability == NVML_P2P_CAPS_INDEX_PCI ? is_near
                                                                : is_near || wire;
    *status = is_supported ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* The card at the far end of a device's link: its links are numbered peer after peer. */
static int far_end(const struct nvidia_device *device, unsigned link)
{
    for (unsigned peer = 0; peer < rack->device_count; peer++) {
        if (link < device->links[peer].nvlink_count)
            return (int)peer;
        link -= device->links[peer].nvlink_count;
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
