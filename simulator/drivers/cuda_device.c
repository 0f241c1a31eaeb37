/* The fake driver's start, its objects and its devices. */
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#ifndef VISIBLE_DEVICES
#define VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"
#endif
#define CELL 512u

_Static_assert(sizeof(struct node) <= CELL, "the largest object fits a cell");

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .host_change = PTHREAD_COND_INITIALIZER};
struct arena objects = {.cell_bytes = CELL, .size_bytes = UINT64_C(1) << 32};

static bool forked; /* set in a forked child of a process that had called cuInit: no driver call works there */

/* Start. */

static void after_fork(void)
{
    if (!driver.rack)
        return;
    engine_forget(driver.rack->engine);
    driver.rack = NULL;
    forked = true;
    pthread_mutex_init(&driver.lock, NULL);
}

/* The cards that CUDA_VISIBLE_DEVICES names, in its order, up to the first entry that names none. As in CUDA, a
 * process sees at most one MIG instance. */
static unsigned visible_cards(const struct nvidia *rack, unsigned cards[ENGINE_CARDS])
{
    unsigned usable_cards[ENGINE_CARDS], usable_count = 0, count = 0;
    for (unsigned i = 0; i < rack->device_count; i++) /* a MIG device without instances offers nothing */
        if (!strcmp(rack->devices[i].health, "ok") && rack->devices[i].card_count && !rack->devices[i].is_mig)
            usable_cards[usable_count++] = rack->devices[i].first_card;
    for (unsigned i = 0; i < rack->device_count && !usable_count; i++)
        if (!strcmp(rack->devices[i].health, "ok") && rack->devices[i].card_count)
            usable_cards[usable_count++] = rack->devices[i].first_card;
    const char *cursor = getenv(VISIBLE_DEVICES);
    if (!cursor) {
        memcpy(cards, usable_cards, usable_count * sizeof *cards);
        return usable_count;
    }
    bool has_instance = false;
    while (*cursor) {
        cursor += strspn(cursor, " ");
        size_t length = strcspn(cursor, ",");
        unsigned card = ENGINE_CARDS, match_count = 0;
        if (isdigit((unsigned char)*cursor)) {
            char *number_end;
            unsigned long index = strtoul(cursor, &number_end, 10);
            if ((*number_end == ',' || *number_end == ' ' || !*number_end) && index < usable_count)
                card = usable_cards[index], match_count = 1;
        } else if (length >= 4) {
            for (unsigned i = 0; i < rack->card_count; i++)
                if (!strncasecmp(rack->cards[i].uuid, cursor, length) &&
                    !strcmp(rack->devices[rack->cards[i].device_index].health, "ok"))
                    card = i, match_count++;
        }
        if (match_count != 1)
            break;
        for (unsigned i = 0; i < count; i++)
            if (cards[i] == card)
                return count;
        if (rack->cards[card].mig_slices && has_instance)
            break;
        has_instance |= rack->cards[card].mig_slices > 0;
        cards[count++] = card;
        cursor += length;
        cursor += *cursor == ',';
    }
    return count;
}

EXPORT CUresult cuInit(unsigned flags)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&once);
    struct nvidia *rack = driver.rack ? NULL : nvidia_open();
    unsigned cards[ENGINE_CARDS], count = rack ? visible_cards(rack, cards) : 0;
    if (count) {
        for (unsigned i = 0; i < count; i++)
            driver.devices[i] = (struct device){
                .slot = &rack->devices[rack->cards[cards[i]].device_index],
                .card = &rack->cards[cards[i]],
                .card_index = cards[i],
            };
        driver.device_count = count;
        if (objects_make()) {
            pthread_atfork(NULL, NULL, after_fork);
            driver.rack = rack;
        }
    }
    pthread_mutex_unlock(&once);
    return driver.rack ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = driver.rack ? driver.rack->cuda_version : 13000;
    return CUDA_SUCCESS;
}

/* Devices. */

struct device *device_at(CUdevice ordinal)
{
    return ordinal >= 0 && (unsigned)ordinal < driver.device_count ? &driver.devices[ordinal] : NULL;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    LOCKED;
    NEEDS(count);
    *count = (int)driver.device_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    WITH_DEVICE(found_device, ordinal);
    NEEDS(device);
    *device = (CUdevice)(found_device - driver.devices);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(name && length > 0);
    if (device->card->mig_slices)
        snprintf(name, (size_t)length, "%s MIG %s", device->slot->model, device->card->profile);
    else
        snprintf(name, (size_t)length, "%s", device->slot->model);
    return CUDA_SUCCESS;
}

static void uuid_bytes(const char *text, CUuuid *uuid)
{
    unsigned digit_count = 0;
    memset(uuid, 0, sizeof *uuid);
    for (text += text[8] == '-' ? 0 : 4; *text && digit_count < 32; text++) /* with "GPU-" in front, or without */
        if (isxdigit((unsigned char)*text)) {
            unsigned nibble = (unsigned)(isdigit((unsigned char)*text) ? *text - '0' : (*text | 32) - 'a' + 10);
            uuid->bytes[digit_count / 2] |= (char)(nibble << (digit_count % 2 ? 0 : 4));
            digit_count++;
        }
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(uuid);
    uuid_bytes(device->card->uuid, uuid); /* of the instance, where it is one */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(uuid);
    uuid_bytes(device->slot->uuid, uuid);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(bytes);
    *bytes = device->card->memory_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(major && minor);
    *major = device->slot->major;
    *minor = device->slot->minor;
    return CUDA_SUCCESS;
}

struct device *device_of_card(unsigned card)
{
    for (unsigned i = 0; i < driver.device_count; i++)
        if (driver.devices[i].card_index == card)
            return &driver.devices[i];
    return NULL;
}

unsigned multiprocessors(const struct device *device)
{
    unsigned device_count = device->slot->multiprocessors;
    return device->card->mig_slices ? device_count / 8 * device->card->mig_slices
                                    : device_count; /* an H100's 1g has 16 of 132 */
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(value);
    switch ((unsigned)attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 101376; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 102400; break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 6144; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 60 << 20; break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: *value = 512; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = (int)multiprocessors(device); break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = THREADS_PER_MULTIPROCESSOR; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = (int)device->slot->pci_domain; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = (int)device->slot->pci_bus; break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = (int)device->slot->pci_device; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = device->slot->major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = device->slot->minor; break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: *value = device->slot->numa_node; break;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
    default:
        if (attribute == 0 || (unsigned)attribute > 147)
            return CUDA_ERROR_INVALID_VALUE;
        *value = 0; /* what the fake does not do, it does not claim */
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    (void)device;
    NEEDS(properties);
    *properties = (CUdevprop){
        1024, {1024, 1024, 64}, {0x7fffffff, 65535, 65535}, 49152, 65536, 32, 0x7fffffff, 65536, 1980000, 512};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *address, int length, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(address && length >= 13);
    const struct nvidia_device *slot = device->slot;
    snprintf(address, (size_t)length, "%04X:%02X:%02X.0", slot->pci_domain, slot->pci_bus, slot->pci_device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *ordinal, const char *address)
{
    LOCKED;
    unsigned domain, bus, device;
    NEEDS(ordinal && address && sscanf(address, "%x:%x:%x", &domain, &bus, &device) == 3);
    for (unsigned i = 0; i < driver.device_count; i++) {
        const struct nvidia_device *slot = driver.devices[i].slot;
        if (slot->pci_domain == domain && slot->pci_bus == bus && slot->pci_device == device) {
            *ordinal = (CUdevice)i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

bool device_peers(const struct device *device, const struct device *peer)
{
    const struct nvidia_link *link = &device->slot->links[peer->slot - driver.rack->devices];
    return device != peer && !device->card->mig_slices && !peer->card->mig_slices &&
           (link->nvlink_count || link->path == PATH_PIX || link->path == PATH_PXB);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can_access, CUdevice ordinal, CUdevice peer_ordinal)
{
    WITH_DEVICE(device, ordinal);
    struct device *peer = device_at(peer_ordinal);
    if (!peer)
        return CUDA_ERROR_INVALID_DEVICE;
    NEEDS(can_access);
    *can_access = device_peers(device, peer);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice ordinal,
                                        CUdevice peer_ordinal)
{
    WITH_DEVICE(device, ordinal);
    struct device *peer = device_at(peer_ordinal);
    if (!peer || peer == device)
        return CUDA_ERROR_INVALID_DEVICE;
    NEEDS(value);
    bool is_nvlinked = device->slot->links[peer->slot - driver.rack->devices].nvlink_count;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK          ? !is_nvlinked
             : attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED ? is_nvlinked
                                                                            : device_peers(device, peer);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct context *peer = object_find(handle, OBJECT_CONTEXT);
    if (!peer || flags)
        return peer ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    return device_peers(context->device, peer->device) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
    LOCKED;
    return object_find(handle, OBJECT_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
