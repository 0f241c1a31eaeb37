/* Hides cards that are not granted: no function returns a handle of one, so functions that take a handle report only
 * granted cards. A card is shown, too, if a MIG instance of it is granted. */
#include "device.h"

#include "bodies.h"
#include "driver.h"

#include "../core/tenant.h"

#include <stdio.h>
#include <string.h>

/* NVML's handle of one of the grant's devices. */
static nvmlReturn_t handle_of_device(unsigned device, nvmlDevice_t *handle)
{
    typeof(&nvmlDeviceGetHandleByUUID) get_by_uuid = REAL(nvmlDeviceGetHandleByUUID);
    return get_by_uuid == NULL ? NVML_ERROR_NOT_FOUND : get_by_uuid(tenant_terms((int)device)->uuid, handle);
}

/* The card of a MIG instance; of a card, itself. */
static nvmlDevice_t card_of(nvmlDevice_t handle)
{
    typeof(&nvmlDeviceIsMigDeviceHandle) get_is_instance = REAL(nvmlDeviceIsMigDeviceHandle);
    typeof(&nvmlDeviceGetDeviceHandleFromMigDeviceHandle) get_card_of_instance =
        REAL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    unsigned is_instance = 0;
    nvmlDevice_t card;
    bool has_card = get_is_instance != NULL && get_card_of_instance != NULL &&
                    get_is_instance(handle, &is_instance) == NVML_SUCCESS && is_instance != 0 &&
                    get_card_of_instance(handle, &card) == NVML_SUCCESS;
    return has_card ? card : handle;
}

static unsigned index_in(const nvmlDevice_t *list, unsigned count, nvmlDevice_t handle)
{
    unsigned index = 0;
    while (index < count && list[index] != handle)
        index++;
    return index;
}

/* The cards that are shown; returns how many. A card that is lost is NULL, so that later ones keep their index. */
static unsigned list_cards(nvmlDevice_t cards[HETERO_MAX_DEVICES])
{
    unsigned count = 0;
    for (unsigned device = 0; device < tenant_grant->device_count; device++) {
        nvmlDevice_t handle;
        nvmlReturn_t answer = handle_of_device(device, &handle);
        if (answer == NVML_ERROR_NOT_FOUND || answer == NVML_ERROR_INVALID_ARGUMENT)
            continue; /* a device of another vendor */
        nvmlDevice_t card = answer == NVML_SUCCESS ? card_of(handle) : NULL;
        if (card == NULL || index_in(cards, count, card) == count)
            cards[count++] = card;
    }
    return count;
}

/* The MIG instances of a card that are granted; returns how many. */
static unsigned list_instances(nvmlDevice_t card, nvmlDevice_t instances[HETERO_MAX_DEVICES])
{
    unsigned count = 0;
    for (unsigned device = 0; device < tenant_grant->device_count; device++) {
        nvmlDevice_t handle;
        if (handle_of_device(device, &handle) == NVML_SUCCESS && handle != card && card_of(handle) == card)
            instances[count++] = handle;
    }
    return count;
}

/* A bit for each of the grant's devices that a handle stands for. 0: it is not granted. */
static uint32_t devices_of(nvmlDevice_t handle)
{
    char uuid[96];
    typeof(&nvmlDeviceGetUUID) get_uuid = REAL(nvmlDeviceGetUUID);
    if (get_uuid == NULL || get_uuid(handle, uuid, sizeof uuid) != NVML_SUCCESS)
        return 0;
    int device = tenant_device_named(uuid);
    if (device != DEVICE_FOREIGN)
        return UINT32_C(1) << device;
    nvmlDevice_t instances[HETERO_MAX_DEVICES];
    unsigned count = list_instances(handle, instances);
    uint32_t device_bits = 0;
    for (unsigned index = 0; index < count; index++)
        device_bits |= devices_of(instances[index]);
    return device_bits;
}

uint32_t device_limits(nvmlDevice_t handle)
{
    uint32_t device_bits = tenant_region() == NULL ? 0 : devices_of(handle);
    for (int device = 0; device < (int)tenant_grant->device_count; device++)
        if (terms_policy(tenant_terms(device)) == HETERO_POLICY_OFF)
            device_bits &= ~(UINT32_C(1) << device);
    return device_bits;
}

/* ----------------------------------------------------------------------------------------- functions of one handle */

nvmlReturn_t device_count(nvmlReturn_t (*real)(unsigned *), unsigned *count)
{
    nvmlDevice_t cards[HETERO_MAX_DEVICES];
    nvmlReturn_t answer = real(count);
    if (answer == NVML_SUCCESS)
        *count = list_cards(cards);
    return answer;
}

nvmlReturn_t handle_by_index(nvmlReturn_t (*real)(unsigned, nvmlDevice_t *), unsigned index, nvmlDevice_t *handle)
{
    nvmlDevice_t cards[HETERO_MAX_DEVICES], unused;
    nvmlReturn_t not_found_answer = real(UINT32_MAX, &unused); /* the error for a card that does not exist */
    if (not_found_answer != NVML_ERROR_INVALID_ARGUMENT || handle == NULL || index >= list_cards(cards))
        return not_found_answer;
    *handle = cards[index];
    return *handle != NULL ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

static nvmlReturn_t unless_not_granted(nvmlReturn_t answer, nvmlDevice_t *handle)
{
    if (answer != NVML_SUCCESS || devices_of(*handle) != 0)
        return answer;
    *handle = NULL;
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t handle_by_name(nvmlReturn_t (*real)(const char *, nvmlDevice_t *), const char *name, nvmlDevice_t *handle)
{
    return unless_not_granted(real(name, handle), handle);
}

nvmlReturn_t handle_by_uuid(nvmlReturn_t (*real)(const nvmlUUID_v1_t *, nvmlDevice_t *), const nvmlUUID_v1_t *uuid,
                            nvmlDevice_t *handle)
{
    return unless_not_granted(real(uuid, handle), handle);
}

nvmlReturn_t part_by_index(nvmlReturn_t (*real)(nvmlDevice_t, unsigned, nvmlDevice_t *), nvmlDevice_t card,
                           unsigned index, nvmlDevice_t *instance)
{
    nvmlDevice_t instances[HETERO_MAX_DEVICES];
    unsigned count = list_instances(card, instances);
    if (count == 0 || instance == NULL)
        return unless_not_granted(real(card, index, instance), instance);
    *instance = index < count ? instances[index] : NULL;
    return index < count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t device_index(nvmlReturn_t (*real)(nvmlDevice_t, unsigned *), nvmlDevice_t handle, unsigned *index)
{
    nvmlDevice_t handles[HETERO_MAX_DEVICES];
    nvmlReturn_t answer = real(handle, index);
    if (answer != NVML_SUCCESS)
        return answer;
    nvmlDevice_t card = card_of(handle);
    unsigned count = card == handle ? list_cards(handles) : list_instances(card, handles);
    unsigned place_in_list = index_in(handles, count, handle);
    if (place_in_list < count)
        *index = place_in_list;
    return answer;
}

/* ---------------------------------------------------------------------------------------- functions without handles */

/* Excluded cards are those that an administrator hid from all programs. */
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
    nvmlDevice_t handle;
    typeof(&nvmlDeviceGetHandleByPciBusId_v2) get_by_address = REAL(nvmlDeviceGetHandleByPciBusId_v2);
    if (pci == NULL || get_by_address == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(address, sizeof address, "%08x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
    bool is_granted = get_by_address(address, &handle) == NVML_SUCCESS && devices_of(handle) != 0;
    return is_granted ? real(pci, state) : NVML_ERROR_INVALID_ARGUMENT;
}

/* ------------------------------------------------------------------------------------ functions of several handles */

enum { MAX_CARDS = 256 }; /* of a machine */

static unsigned keep_granted(nvmlDevice_t *handles, unsigned count)
{
    unsigned granted_count = 0;
    for (unsigned index = 0; index < count; index++)
        if (devices_of(handles[index]) != 0)
            handles[granted_count++] = handles[index];
    return granted_count;
}

/* Write granted handles as the two functions below do: as many as `*count` allows, or only their number if it is 0. */
static nvmlReturn_t write_granted(nvmlReturn_t answer, nvmlDevice_t *driver_handles, unsigned driver_count,
                                  unsigned *count, nvmlDevice_t *handles)
{
    if (answer != NVML_SUCCESS)
        return answer;
    unsigned granted_count = keep_granted(driver_handles, driver_count), capacity = *count;
    if (capacity == 0 || granted_count < capacity)
        *count = granted_count;
    if (capacity != 0)
        memcpy(handles, driver_handles, *count * sizeof *handles);
    return answer;
}

#define WRITE_GRANTED(count, handles, ...)                                                                             \
    do {                                                                                                               \
        nvmlDevice_t driver_handles[MAX_CARDS];                                                                        \
        unsigned driver_count = 0;                                                                                     \
        if (count == NULL || (*count != 0 && handles == NULL))                                                         \
            return real(__VA_ARGS__, count, handles);                                                                  \
        nvmlReturn_t answer = real(__VA_ARGS__, &driver_count, NULL);                                                  \
        driver_count = driver_count < MAX_CARDS ? driver_count : MAX_CARDS;                                            \
        if (answer == NVML_SUCCESS && driver_count != 0)                                                               \
            answer = real(__VA_ARGS__, &driver_count, driver_handles);                                                 \
        return write_granted(answer, driver_handles, driver_count, count, handles);                                    \
    } while (0)

nvmlReturn_t nearest_devices(nvmlReturn_t (*real)(nvmlDevice_t, nvmlGpuTopologyLevel_t, unsigned *, nvmlDevice_t *),
                             nvmlDevice_t handle, nvmlGpuTopologyLevel_t level, unsigned *count, nvmlDevice_t *handles)
{
    WRITE_GRANTED(count, handles, handle, level);
}

nvmlReturn_t devices_of_cpu(nvmlReturn_t (*real)(unsigned, unsigned *, nvmlDevice_t *), unsigned cpu, unsigned *count,
                            nvmlDevice_t *handles)
{
    WRITE_GRANTED(count, handles, cpu);
}

nvmlReturn_t devices_of_unit(nvmlReturn_t (*real)(nvmlUnit_t, unsigned *, nvmlDevice_t *), nvmlUnit_t unit,
                             unsigned *count, nvmlDevice_t *handles)
{
    nvmlDevice_t driver_handles[MAX_CARDS];
    unsigned driver_count = MAX_CARDS;
    if (count == NULL || handles == NULL)
        return real(unit, count, handles);
    nvmlReturn_t answer = real(unit, &driver_count, driver_handles);
    if (answer != NVML_SUCCESS)
        return answer;
    unsigned granted_count = keep_granted(driver_handles, driver_count), capacity = *count;
    *count = granted_count;
    if (granted_count > capacity)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(handles, driver_handles, granted_count * sizeof *handles);
    return answer;
}
