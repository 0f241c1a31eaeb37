/* libhydmi.so: virtual devices of Hygon cards that are not there. A [device]'s core is its number of compute units. */
#include "hydmi.h"

#include "management_fake.h"

#include <stdio.h>
#include <string.h>

const char fake_vendor[] = "hygon";

enum { VDEVICE };   /* kinds of slices */
#define VDEVICES 4u /* on one card */

static bool opened(void)
{
    return fake_opened() || fake_open();
}
static bool is_null(const void *out)
{
    return !out;
}

/* The card a call is about, or the end of the call. */
#define CARD(out)                                                                                                      \
    const bool ready = opened();                                                                                       \
    const struct fake_card *card = fake_card((unsigned)device_id);                                                     \
    FAULTS(card, (out), sizeof *(out));                                                                                \
    if (!ready)                                                                                                        \
        return DMI_STATUS_OPEN_MKFD_FAILED;                                                                            \
    if (!card || !faults_spare(card) || is_null(out))                                                                  \
    return DMI_STATUS_INVALID_ARGUMENTS
/* Calls about none. */
#define MACHINE(out)                                                                                                   \
    const bool ready = opened();                                                                                       \
    FAULTS(NULL, (out), sizeof *(out));                                                                                \
    if (!ready)                                                                                                        \
        return DMI_STATUS_OPEN_MKFD_FAILED;                                                                            \
    if (is_null(out))                                                                                                  \
    return DMI_STATUS_INVALID_ARGUMENTS

EXPORT dmiStatus dmiGetStatusString(dmiStatus status, const char **status_string)
{
    static const struct {
        dmiStatus status;
        const char *words;
    } names[] = {{DMI_STATUS_SUCCESS, "success"},
                 {DMI_STATUS_ERROR, "error"},
                 {DMI_STATUS_OPEN_MKFD_FAILED, "open mkfd failed"},
                 {DMI_STATUS_INVALID_ARGUMENTS, "invalid arguments"},
                 {DMI_STATUS_OUT_OF_RESOURCES, "out of resources"},
                 {DMI_STATUS_VDEV_NOT_EXIST, "vdev does not exist"},
                 {DMI_STATUS_DEVICE_BUSY, "device busy"}};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == status) {
            *status_string = names[i].words;
            return DMI_STATUS_SUCCESS;
        }
    return DMI_STATUS_ERROR;
}

EXPORT dmiStatus dmiGetDeviceCount(int *count)
{
    MACHINE(count);
    *count = (int)fake_count();
    return DMI_STATUS_SUCCESS;
}

EXPORT dmiStatus dmiGetDeviceInfo(int device_id, dmiDeviceInfo *device_info)
{
    CARD(device_info);
    *device_info = (dmiDeviceInfo){.compute_unit_count = (int)card->core_units,
                                   .global_mem_size = card->memory_bytes,
                                   .usage_mem_size = card->used_bytes,
                                   .device_id = device_id};
    snprintf(device_info->name, sizeof device_info->name, "%s", card->model);
    return DMI_STATUS_SUCCESS;
}

EXPORT dmiStatus dmiGetDevBusyPercent(int device_id, int *busy_percent)
{
    CARD(busy_percent);
    *busy_percent = (int)card->busy_percent;
    return DMI_STATUS_SUCCESS;
}

EXPORT dmiStatus dmiGetMaxVDeviceCount(int *count)
{
    MACHINE(count);
    *count = VDEVICES;
    return DMI_STATUS_SUCCESS;
}

EXPORT dmiStatus dmiGetVDeviceCount(int *count)
{
    MACHINE(count);
    *count = 0;
    fake_lock();
    for (const struct fake_slice *slice = NULL; (slice = fake_next(NULL, VDEVICE, slice));)
        ++*count;
    fake_unlock();
    return DMI_STATUS_SUCCESS;
}

struct left {
    uint64_t core_units, memory_bytes;
    unsigned vdevice_count;
};

/* What the card has left without its virtual devices, of which one may be excepted. Under the lock. */
static struct left left_of(const struct fake_card *card, const struct fake_slice *excluded)
{
    struct left remaining = {card->core_units, card->memory_bytes, VDEVICES};
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, VDEVICE, slice));)
        if (slice != excluded) {
            remaining.core_units -= slice->core_units;
            remaining.memory_bytes -= slice->memory_size;
            remaining.vdevice_count--;
        }
    return remaining;
}

EXPORT dmiStatus dmiGetDeviceRemainingInfo(int device_id, size_t *cus, size_t *memories)
{
    CARD(cus);
    if (!memories)
        return DMI_STATUS_INVALID_ARGUMENTS;
    fake_lock();
    struct left remaining = left_of(card, NULL);
    fake_unlock();
    *cus = remaining.core_units;
    *memories = remaining.memory_bytes;
    return DMI_STATUS_SUCCESS;
}

/* Creates all of them or none; sizes in MiB. */
EXPORT dmiStatus dmiCreateVDevices(int device_id, int vdev_count, int *vdev_cus, int *vdev_mem_size)
{
    CARD(vdev_cus);
    uint64_t units = 0, memory = 0;
    if (!vdev_mem_size || vdev_count < 1)
        return DMI_STATUS_INVALID_ARGUMENTS;
    for (int i = 0; i < vdev_count; i++) {
        if (vdev_cus[i] < 1 || vdev_mem_size[i] < 1)
            return DMI_STATUS_INVALID_ARGUMENTS;
        units += (unsigned)vdev_cus[i];
        memory += (uint64_t)vdev_mem_size[i] << 20;
    }
    fake_lock();
    struct left remaining = left_of(card, NULL);
    bool fits = units <= remaining.core_units && memory <= remaining.memory_bytes &&
                (unsigned)vdev_count <= remaining.vdevice_count;
    for (int i = 0; fits && i < vdev_count; i++) {
        uint32_t id = 0;
        while (fake_find(NULL, VDEVICE, id))
            id++;
        struct fake_slice *slice = fake_cut(card, VDEVICE, id);
        if (slice) {
            slice->core_units = (uint32_t)vdev_cus[i];
            slice->memory_size = (uint64_t)vdev_mem_size[i] << 20;
        }
    }
    fake_unlock();
    return fits ? DMI_STATUS_SUCCESS : DMI_STATUS_OUT_OF_RESOURCES;
}

/* Under the lock. */
static const struct fake_card *card_of(const struct fake_slice *slice)
{
    const struct fake_card *card;
    for (unsigned position = 0; (card = fake_at(position)) && card->key != slice->card_key; position++)
        ;
    return card;
}

EXPORT dmiStatus dmiGetVDeviceInfo(int vdevice_id, dmiDeviceInfo *device_info)
{
    MACHINE(device_info);
    const struct fake_card *card = NULL;
    fake_lock();
    const struct fake_slice *slice = fake_find(NULL, VDEVICE, (uint32_t)vdevice_id);
    if (slice && (card = card_of(slice))) {
        *device_info = (dmiDeviceInfo){.compute_unit_count = (int)slice->core_units,
                                       .global_mem_size = slice->memory_size,
                                       .device_id = (int)card->position};
        snprintf(device_info->name, sizeof device_info->name, "%s", card->model);
    }
    fake_unlock();
    return card ? DMI_STATUS_SUCCESS : DMI_STATUS_VDEV_NOT_EXIST;
}

EXPORT dmiStatus dmiGetVDevBusyPercent(int vdevice_id, int *busy_percent)
{
    dmiDeviceInfo info;
    MACHINE(busy_percent);
    *busy_percent = 0;
    return dmiGetVDeviceInfo(vdevice_id, &info);
}

EXPORT dmiStatus dmiUpdateSingleVDevice(int vdevice_id, int vdev_cus, int vdev_mem_size)
{
    MACHINE(&vdevice_id);
    dmiStatus outcome = DMI_STATUS_VDEV_NOT_EXIST;
    fake_lock();
    struct fake_slice *slice = fake_find(NULL, VDEVICE, (uint32_t)vdevice_id);
    const struct fake_card *card = slice ? card_of(slice) : NULL;
    if (card) {
        struct left remaining = left_of(card, slice);
        uint64_t units = vdev_cus < 0 ? slice->core_units : (unsigned)vdev_cus; /* -1 changes nothing */
        uint64_t memory = vdev_mem_size < 0 ? slice->memory_size : (uint64_t)vdev_mem_size << 20;
        outcome = fake_in_use(slice)                                                  ? DMI_STATUS_DEVICE_BUSY
                  : units <= remaining.core_units && memory <= remaining.memory_bytes ? DMI_STATUS_SUCCESS
                                                                                      : DMI_STATUS_OUT_OF_RESOURCES;
        if (outcome == DMI_STATUS_SUCCESS) {
            slice->core_units = (uint32_t)units;
            slice->memory_size = memory;
        }
    }
    fake_unlock();
    return outcome;
}

EXPORT dmiStatus dmiDestroySingleVDevice(int vdevice_id)
{
    MACHINE(&vdevice_id);
    fake_lock();
    struct fake_slice *slice = fake_find(NULL, VDEVICE, (uint32_t)vdevice_id);
    bool is_used = slice && fake_in_use(slice);
    if (slice && !is_used)
        fake_drop(slice);
    fake_unlock();
    return !slice ? DMI_STATUS_VDEV_NOT_EXIST : is_used ? DMI_STATUS_DEVICE_BUSY : DMI_STATUS_SUCCESS;
}

EXPORT dmiStatus dmiDestroyVDevices(int device_id)
{
    CARD(&device_id);
    bool is_used = false;
    fake_lock();
    struct fake_slice *first_slice = fake_next(card, VDEVICE, NULL);
    for (struct fake_slice *slice = first_slice; slice; slice = fake_next(card, VDEVICE, slice))
        is_used |= fake_in_use(slice);
    for (struct fake_slice *slice = first_slice; slice && !is_used; slice = fake_next(card, VDEVICE, slice))
        fake_drop(slice);
    fake_unlock();
    return !first_slice ? DMI_STATUS_VDEV_NOT_EXIST : is_used ? DMI_STATUS_DEVICE_BUSY : DMI_STATUS_SUCCESS;
}
