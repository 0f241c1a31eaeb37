/* Which cards there are. A card that is not granted is hidden in one way: no function hands out a handle of it, so
 * whatever takes a handle tells of granted cards alone. A card is shown, too, of which a MIG instance is granted.
 */
#include "device.h"

#include "bodies.h"
#include "driver.h"

#include "../core/tenant.h"

#include <stdio.h>
#include <string.h>

/* The driver's handle of one of the grant's devices. */
static nvmlReturn_t find(unsigned device, nvmlDevice_t *handle)
{
    typeof(&nvmlDeviceGetHandleByUUID) by_uuid = REAL(nvmlDeviceGetHandleByUUID);
    return by_uuid == NULL ? NVML_ERROR_NOT_FOUND : by_uuid(tenant_terms((int)device)->uuid, handle);
}

/* The card of a MIG instance; of a card, itself. */
static nvmlDevice_t card_of(nvmlDevice_t handle)
{
    typeof(&nvmlDeviceIsMigDeviceHandle) is_part = REAL(nvmlDeviceIsMigDeviceHandle);
    typeof(&nvmlDeviceGetDeviceHandleFromMigDeviceHandle) get_card = REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    unsigned part = 0;
    nvmlDevice_t card;
    bool has_card = is_part != NULL && get_card != NULL && is_part(handle, &part) == NVML_SUCCESS && part != 0 &&
                    get_card(handle, &card) == NVML_SUCCESS;
    return has_card ? card : handle;
}

static unsigned place_in(const nvmlDevice_t *list, unsigned count, nvmlDevice_t handle)
{
    unsigned place = 0;
    while (place < count && list[place] != handle)
        place++;
    return place;
}

/* The cards that are shown. One that the driver knows and has no handle of is NULL: those behind it keep their index.
 */
static unsigned list_cards(nvmlDevice_t cards[HETERO_MAX_DEVICES])
{
    unsigned count = 0;
    for (unsigned device = 0; device < tenant_grant->device_count; device++) {
        nvmlDevice_t handle;
        nvmlReturn_t found = find(device, &handle);
        if (found == NVML_ERROR_NOT_FOUND || found == NVML_ERROR_INVALID_ARGUMENT)
            continue; /* another vendor's */
        nvmlDevice_t card = found == NVML_SUCCESS ? card_of(handle) : NULL;
        if (card == NULL || place_in(cards, count, card) == count)
            cards[count++] = card;
    }
    return count;
}

/* The MIG instances of a card that are granted. */
static unsigned list_parts(nvmlDevice_t card, nvmlDevice_t parts[HETERO_MAX_DEVICES])
{
    unsigned count = 0;
    for (unsigned device = 0; device < tenant_grant->device_count; device++) {
        nvmlDevice_t handle;
        if (find(device, &handle) == NVML_SUCCESS && handle != card && card_of(handle) == card)
            parts[count++] = handle;
    }
    return count;
}

/* The grant's devices that a handle stands for, as bits. 0: it is not granted. */
static uint32_t devices_of(nvmlDevice_t handle)
{
    char uuid[96];
    typeof(&nvmlDeviceGetUUID) get_uuid = REAL(nvmlDeviceGetUUID);
    if (get_uuid == NULL || get_uuid(handle, uuid, sizeof uuid) != NVML_SUCCESS)
        return 0;
    int device = tenant_device_named(uuid);
    if (device != DEVICE_FOREIGN)
        return UINT32_C(1) << device;
    nvmlDevice_t parts[HETERO_MAX_DEVICES];
    unsigned count = list_parts(handle, parts);
    uint32_t devices = 0;
    for (unsigned part = 0; part < count; part++)
        devices |= devices_of(parts[part]);
    return devices;
}

uint32_t device_limits(nvmlDevice_t handle)
{
    uint32_t devices = tenant_region() == NULL ? 0 : devices_of(handle);
    for (int device = 0; device < (int)tenant_grant->device_count; device++)
        if (terms_policy(tenant_terms(device)) == HETERO_POLICY_OFF)
            devices &= ~(UINT32_C(1) << device);
    return devices;
}

/* ------------------------------------------------------------------------------------------------------- one handle */

nvmlReturn_t device_count(nvmlReturn_t (*real)(unsigned *), unsigned *count)
{
    nvmlDevice_t cards[HETERO_MAX_DEVICES];
    nvmlReturn_t answer = real(count);
    if (answer == NVML_SUCCESS)
        *count = list_cards(cards);
    return answer;
}

nvmlReturn_t handle_by_index(nvmlReturn_t (*real)(unsigned, nvmlDevice_t *), unsigned index, nvmlDevice_t *device)
{
    nvmlDevice_t cards[HETERO_MAX_DEVICES], none;
    nvmlReturn_t nowhere = real(UINT32_MAX, &none); /* what the driver says of a card that does not exist */
    if (nowhere != NVML_ERROR_INVALID_ARGUMENT || device == NULL || index >= list_cards(cards))
        return nowhere;
    *device = cards[index];
    return *device != NULL ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

static nvmlReturn_t unless_hidden(nvmlReturn_t answer, nvmlDevice_t *device)
{
    if (answer != NVML_SUCCESS || devices_of(*device) != 0)
        return answer;
    *device = NULL;
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t handle_by_name(nvmlReturn_t (*real)(const char *, nvmlDevice_t *), const char *name, nvmlDevice_t *device)
{
    return unless_hidden(real(name, device), device);
}

nvmlReturn_t handle_by_uuid(nvmlReturn_t (*real)(const nvmlUUID_v1_t *, nvmlDevice_t *), const nvmlUUID_v1_t *uuid,
                            nvmlDevice_t *device)
{
    return unless_hidden(real(uuid, device), device);
}

nvmlReturn_t part_by_index(nvmlReturn_t (*real)(nvmlDevice_t, unsigned, nvmlDevice_t *), nvmlDevice_t device,
                           unsigned index, nvmlDevice_t *part)
{
    nvmlDevice_t parts[HETERO_MAX_DEVICES];
    unsigned count = list_parts(device, parts);
    if (count == 0 || part == NULL)
        return unless_hidden(real(device, index, part), part);
    *part = index < count ? parts[index] : NULL;
    return index < count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t device_index(nvmlReturn_t (*real)(nvmlDevice_t, unsigned *), nvmlDevice_t device, unsigned *index)
{
    nvmlDevice_t list[HETERO_MAX_DEVICES];
    nvmlReturn_t answer = real(device, index);
    if (answer != NVML_SUCCESS)
        return answer;
    nvmlDevice_t card = card_of(device);
    unsigned count = card == device ? list_cards(list) : list_parts(card, list);
    unsigned place = place_in(list, count, device);
    if (place < count)
        *index = place;
    return answer;
}

/* ------------------------------------------------------------------------------------------------------- no handles */

/* Cards that an administrator took away from everybody. */
nvmlReturn_t excluded_count(nvmlReturn_t (*real)(unsigned *), unsigned *count)
{
    nvmlReturn_t answer = real(count);
    if (answer == NVML_SUCCESS)
        *count = 0;
    return answer;
}

nvmlReturn_t excluded_by_index(nvmlReturn_t (*real)(unsigned, nvmlExcludedDeviceInfo_t *), unsigned index,
                               nvmlExcludedDeviceInfo_t *info)
{
    (void)index;
    return real(UINT32_MAX, info);
}

nvmlReturn_t drain_state(nvmlReturn_t (*real)(nvmlPciInfo_t *, nvmlEnableState_t *), nvmlPciInfo_t *pci,
                         nvmlEnableState_t *state)
{
    char address[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
    nvmlDevice_t device;
    typeof(&nvmlDeviceGetHandleByPciBusId_v2) by_address = REAL(nvmlDeviceGetHandleByPciBusId_v2);
    if (pci == NULL || by_address == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(address, sizeof address, "%08x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
    bool granted = by_address(address, &device) == NVML_SUCCESS && devices_of(device) != 0;
    return granted ? real(pci, state) : NVML_ERROR_INVALID_ARGUMENT;
}

/* -------------------------------------------------------------------------------------------------- several handles */

enum { MOST_CARDS = 256 }; /* of a machine */

static unsigned keep_granted(nvmlDevice_t *found, unsigned count)
{
    unsigned granted = 0;
    for (unsigned i = 0; i < count; i++)
        if (devices_of(found[i]) != 0)
            found[granted++] = found[i];
    return granted;
}

/* As the two below have it: as many as there is room for, and without room their number alone. */
static nvmlReturn_t give_out(nvmlReturn_t answer, nvmlDevice_t *found, unsigned all, unsigned *count,
                             nvmlDevice_t *devices)
{
    if (answer != NVML_SUCCESS)
        return answer;
    unsigned granted = keep_granted(found, all), room = *count;
    if (room == 0 || granted < room)
        *count = granted;
    if (room != 0)
        memcpy(devices, found, *count * sizeof *devices);
    return answer;
}

#define GIVE_OUT(count, devices, ...)                                                                                  \
    do {                                                                                                               \
        nvmlDevice_t found[MOST_CARDS];                                                                                \
        unsigned all = 0;                                                                                              \
        if (count == NULL || (*count != 0 && devices == NULL))                                                         \
            return real(__VA_ARGS__, count, devices);                                                                  \
        nvmlReturn_t answer = real(__VA_ARGS__, &all, NULL);                                                           \
        all = all < MOST_CARDS ? all : MOST_CARDS;                                                                     \
        if (answer == NVML_SUCCESS && all != 0)                                                                        \
            answer = real(__VA_ARGS__, &all, found);                                                                   \
        return give_out(answer, found, all, count, devices);                                                           \
    } while (0)

nvmlReturn_t nearest_devices(nvmlReturn_t (*real)(nvmlDevice_t, nvmlGpuTopologyLevel_t, unsigned *, nvmlDevice_t *),
                             nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned *count, nvmlDevice_t *devices)
{
    GIVE_OUT(count, devices, device, level);
}

nvmlReturn_t devices_of_cpu(nvmlReturn_t (*real)(unsigned, unsigned *, nvmlDevice_t *), unsigned cpu, unsigned *count,
                            nvmlDevice_t *devices)
{
    GIVE_OUT(count, devices, cpu);
}

nvmlReturn_t devices_of_unit(nvmlReturn_t (*real)(nvmlUnit_t, unsigned *, nvmlDevice_t *), nvmlUnit_t unit,
                             unsigned *count, nvmlDevice_t *devices)
{
    nvmlDevice_t found[MOST_CARDS];
    unsigned all = MOST_CARDS;
    if (count == NULL || devices == NULL)
        return real(unit, count, devices);
    nvmlReturn_t answer = real(unit, &all, found);
    if (answer != NVML_SUCCESS)
        return answer;
    unsigned granted = keep_granted(found, all), room = *count;
    *count = granted;
    if (granted > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(devices, found, granted * sizeof *devices);
    return answer;
}
