/* libdcmi.so's virtual NPUs: slices of a card by templates, whose cores, AI CPUs and memory add up.
 *
 * A [device] may give its number of AI CPUs: aicpu, by default its model's.
 */
#include "dcmi_card.h"

#include <stdio.h>

/* What the driver can cut from each model: AI cores, AI CPUs, MB. The templates of npu-smi's virtualization guide, as
 * Ascend's device plugin lists them. */
static const struct menu {
    const char *model;
    unsigned aicpu;
    struct shape {
        const char *name;
        unsigned aicore, aicpu, memory;
    } shapes[4];
} menus[] = {
    {"910A", 14, {{"vir02", 2, 0, 2184}, {"vir04", 4, 0, 4369}, {"vir08", 8, 0, 8738}, {"vir16", 16, 0, 17476}}},
    {"910B2", 6, {{"vir03_1c_8g", 3, 1, 8192}, {"vir06_1c_16g", 6, 1, 16384}, {"vir12_3c_32g", 12, 3, 32768}}},
    {"910B3", 7, {{"vir05_1c_16g", 5, 1, 16384}, {"vir10_3c_32g", 10, 3, 32768}}},
    {"910B4-1", 7, {{"vir05_1c_16g", 5, 1, 16384}, {"vir10_3c_32g", 10, 3, 32768}}},
    {"910B4", 7, {{"vir05_1c_8g", 5, 1, 8192}, {"vir10_3c_16g", 10, 3, 16384}}},
    {"310P3", 7, {{"vir01", 1, 1, 3072}, {"vir02", 2, 2, 6144}, {"vir04", 4, 4, 12288}}},
    {"Ascend910", 7, {{"vir05_1c_16g", 5, 1, 16384}, {"vir10_3c_32g", 10, 3, 32768}}},
};

static const struct menu *menu_of(const struct fake_card *card)
{
    for (unsigned i = 0; i < sizeof menus / sizeof *menus; i++)
        if (!strcmp(menus[i].model, card->model))
            return &menus[i];
    return NULL;
}

static const struct shape *shape_of(const struct fake_card *card, const char *name)
{
    const struct menu *menu = menu_of(card);
    for (unsigned i = 0; menu && i < 4 && menu->shapes[i].name; i++)
        if (!strcmp(menu->shapes[i].name, name))
            return &menu->shapes[i];
    return NULL;
}

/* What is left of the card's cores, AI CPUs and memory. Under the lock. */
static struct shape free_of(const struct fake_card *card)
{
    const struct menu *menu = menu_of(card);
    struct shape remaining = {"", card->core_units, menu ? number(card, "aicpu", menu->aicpu) : 0,
                              mebibytes(card->memory_bytes)};
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, 0, slice));) {
        const struct shape *shape = shape_of(card, slice->name);
        remaining.aicore -= shape->aicore;
        remaining.aicpu -= shape->aicpu;
        remaining.memory -= shape->memory;
    }
    return remaining;
}

EXPORT int dcmi_create_vdevice(int card_id, int device_id, struct dcmi_create_vdev_res_stru *vdev,
                               struct dcmi_create_vdev_out *out)
{
    DEVICE(out);
    unsigned first_id = 100 + 16 * card->position,
             id = vdev ? vdev->vdev_id : 0; /* sixteen ids a chip, as documented */
    if (!vdev || strnlen(vdev->template_name, 32) == 32 || (id != UINT32_MAX && (id < first_id || id >= first_id + 16)))
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (!menu_of(card))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    const struct shape *shape = shape_of(card, vdev->template_name);
    if (!shape)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    fake_lock();
    struct shape remaining = free_of(card);
    for (unsigned i = 0; id == UINT32_MAX && i < 16; i++)
        if (!fake_find(card, 0, first_id + i))
            id = first_id + i;
    struct fake_slice *slice = NULL;
    if (id != UINT32_MAX && !fake_find(card, 0, id) && remaining.aicore >= shape->aicore &&
        remaining.aicpu >= shape->aicpu && remaining.memory >= shape->memory)
        slice = fake_cut(card, 0, id);
    if (slice)
        snprintf(slice->name, sizeof slice->name, "%s", shape->name);
    fake_unlock();
    *out = (struct dcmi_create_vdev_out){
        .vdev_id = id, .pcie_bus = card->bus, .pcie_device = card->device, .pcie_func = id - first_id + 1};
    return slice ? DCMI_OK : DCMI_ERR_CODE_RESOURCE_OCCUPIED;
}

EXPORT int dcmi_set_destroy_vdevice(int card_id, int device_id, unsigned int vdevid)
{
    DEVICE_NOISE(&vdevid, 0);
    fake_lock();
    struct fake_slice *slice = fake_find(card, 0, vdevid);
    bool is_used = slice && fake_in_use(slice);
    if (slice && !is_used)
        fake_drop(slice);
    fake_unlock();
    return !slice ? DCMI_ERR_CODE_DEVICE_NOT_EXIST : is_used ? DCMI_ERR_CODE_RESOURCE_OCCUPIED : DCMI_OK;
}

static struct dcmi_computing_resource computing(const struct shape *shape)
{
    return (struct dcmi_computing_resource){.aic = (float)shape->aicore,
                                            .aiv = (float)shape->aicore,
                                            .memory_size = shape->memory,
                                            .device_aicpu = (unsigned short)shape->aicpu,
                                            .vdev_memory_total = shape->memory,
                                            .vdev_memory_free = shape->memory};
}

static int query_vdevice(const struct fake_card *card, struct dcmi_vdev_query_stru *query)
{
    fake_lock();
    const struct fake_slice *slice = fake_find(card, 0, query->vdev_id);
    query->query_info = (struct dcmi_vdev_query_info){0};
    if (slice) {
        snprintf(query->query_info.name, sizeof query->query_info.name, "%.15s", slice->name);
        query->query_info.vfid = slice->id % 16;
        query->query_info.is_container_used = fake_in_use(slice);
        query->query_info.computing = computing(shape_of(card, slice->name));
    }
    fake_unlock();
    return slice ? DCMI_OK : DCMI_ERR_CODE_DEVICE_NOT_EXIST;
}

EXPORT int dcmi_get_device_info(int card_id, int device_id, enum dcmi_main_cmd main_cmd, unsigned int sub_cmd,
                                void *buf, unsigned int *size)
{
    DEVICE_NOISE(buf, size ? *size : 0);
    const struct menu *menu = menu_of(card);
    if (!size)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (main_cmd != DCMI_MAIN_CMD_VDEV_MNG || !menu)
        return DCMI_ERR_CODE_NOT_SUPPORT;
    if (sub_cmd == VDEV_RESOURCE || sub_cmd == VDEV_ACTIVITY)
        return *size < sizeof(struct dcmi_vdev_query_stru) ? DCMI_ERR_CODE_INVALID_PARAMETER : query_vdevice(card, buf);
    fake_lock();
    struct shape remaining = free_of(card);
    struct dcmi_soc_total_resource total = {0};
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, 0, slice)) && total.vdev_num < 32;)
        total.vdev_id[total.vdev_num++] = slice->id;
    fake_unlock();
    if (sub_cmd == VDEV_TOTAL && *size >= sizeof total) {
        remaining = (struct shape){"", card->core_units, number(card, "aicpu", menu->aicpu),
                                   mebibytes(card->memory_bytes)};
        total.computing = computing(&remaining);
        memcpy(buf, &total, *size = sizeof total);
        return DCMI_OK;
    }
    if (sub_cmd == VDEV_FREE && *size >= sizeof(struct dcmi_soc_free_resource)) {
        *(struct dcmi_soc_free_resource *)buf = (struct dcmi_soc_free_resource){.computing = computing(&remaining)};
        *size = sizeof(struct dcmi_soc_free_resource);
        return DCMI_OK;
    }
    return DCMI_ERR_CODE_INVALID_PARAMETER;
}
