/* libdcmi.so for Ascend cards that are not there.
 *
 * Further keys of a [device]: card and chip (their ids; a card of its own each, unless said), aicpu (AI CPUs; the model's
 * unless said) and cpus (the host CPUs nearby, such as 0-23). A 910C is two [device]s of model Ascend910 with the
 * same card and chips 0 and 1.
 */
#include "dcmi.h"

#include "shelf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char shelf_vendor[] = "ascend";

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

static unsigned number(const struct shelf_card *card, const char *key, unsigned fallback)
{
    const char *text = rack_text(card->section, key, NULL);
    return text ? (unsigned)strtoul(text, NULL, 10) : fallback;
}

static unsigned card_of(const struct shelf_card *card) { return number(card, "card", card->place); }
static unsigned chip_of(const struct shelf_card *card) { return number(card, "chip", 0); }

static const struct shelf_card *device(int card_id, int device_id)
{
    const struct shelf_card *card;
    for (unsigned i = 0; (card = shelf_card(i)); i++)
        if ((int)card_of(card) == card_id && (int)chip_of(card) == device_id)
            return card;
    return NULL;
}

static const struct menu *menu_of(const struct shelf_card *card)
{
    for (unsigned i = 0; i < sizeof menus / sizeof *menus; i++)
        if (!strcmp(menus[i].model, card->model))
            return &menus[i];
    return NULL;
}

static const struct shape *shape_of(const struct shelf_card *card, const char *name)
{
    const struct menu *menu = menu_of(card);
    for (unsigned i = 0; menu && i < 4 && menu->shapes[i].name; i++)
        if (!strcmp(menu->shapes[i].name, name))
            return &menu->shapes[i];
    return NULL;
}

static unsigned mebibytes(uint64_t bytes) { return (unsigned)(bytes >> 20); }
static bool has_hbm(const struct shelf_card *card) { return strncmp(card->model, "310", 3); }

static bool is_null(const void *out) { return !out; }

/* The card a call is about, or the end of the call. */
#define DEVICE_NOISE(out, size)                                 \
    const struct shelf_card *card = device(card_id, device_id); \
    FAULTS(card, out, size);                                    \
    if (is_null(out))                                           \
        return DCMI_ERR_CODE_INVALID_PARAMETER;                 \
    if (!card || !shelf_present(card))                          \
    return shelf_opened() ? DCMI_ERR_CODE_DEVICE_NOT_EXIST : DCMI_ERR_CODE_NOT_REDAY
#define DEVICE(out) DEVICE_NOISE((out), sizeof *(out))

EXPORT int dcmi_init(void)
{
    FAULTS(NULL, NULL, 0);
    return shelf_open() ? DCMI_OK : DCMI_ERR_CODE_INNER_ERR;
}

static int text(char *out, int room, const char *value)
{
    if (!out || room <= 0)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    return snprintf(out, (size_t)room, "%s", value) < room ? DCMI_OK : DCMI_ERR_CODE_INVALID_PARAMETER;
}

EXPORT int dcmi_get_dcmi_version(char *dcmi_ver, int buf_size)
{
    FAULTS(NULL, dcmi_ver, (uint64_t)buf_size);
    return text(dcmi_ver, buf_size, "25.5.1");
}

EXPORT int dcmi_get_driver_version(char *driver_ver, unsigned int buf_size)
{
    FAULTS(NULL, driver_ver, buf_size);
    return shelf_opened() ? text(driver_ver, (int)buf_size, shelf_driver("ascend", "25.5.1")) : DCMI_ERR_CODE_NOT_REDAY;
}

EXPORT int dcmi_get_card_list(int *card_num, int *card_list, int list_len)
{
    FAULTS(NULL, card_num, sizeof *card_num);
    const struct shelf_card *card;
    if (!card_num || !card_list)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (!shelf_opened())
        return DCMI_ERR_CODE_NOT_REDAY;
    *card_num = 0;
    for (unsigned i = 0; (card = shelf_card(i)); i++) {
        int known = 0;
        while (known < *card_num && card_list[known] != (int)card_of(card))
            known++;
        if (known < *card_num)
            continue;
        if (*card_num == list_len)
            return DCMI_ERR_CODE_INVALID_PARAMETER;
        card_list[(*card_num)++] = (int)card_of(card);
    }
    return DCMI_OK;
}

EXPORT int dcmi_get_device_num_in_card(int card_id, int *device_num)
{
    FAULTS(NULL, device_num, sizeof *device_num);
    const struct shelf_card *card;
    if (!device_num)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    *device_num = 0;
    for (unsigned i = 0; (card = shelf_card(i)); i++)
        *device_num += (int)card_of(card) == card_id;
    return *device_num ? DCMI_OK : DCMI_ERR_CODE_DEVICE_NOT_EXIST;
}

EXPORT int dcmi_get_device_type(int card_id, int device_id, enum dcmi_unit_type *device_type)
{
    DEVICE(device_type);
    *device_type = NPU_TYPE;
    return DCMI_OK;
}

/* Physical ids are the cards' places, logical ids count those that are there. */
EXPORT int dcmi_get_device_logic_id(int *device_logic_id, int card_id, int device_id)
{
    DEVICE(device_logic_id);
    for (*device_logic_id = 0; shelf_card((unsigned)*device_logic_id) != card; ++*device_logic_id)
        ;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_phyid_from_logicid(unsigned int logicid, unsigned int *phyid)
{
    const struct shelf_card *card = shelf_card(logicid);
    FAULTS(card, phyid, sizeof *phyid);
    if (!card || !phyid)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    *phyid = card->place;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_chip_info_v2(int card_id, int device_id, struct dcmi_chip_info_v2 *chip_info)
{
    DEVICE(chip_info);
    *chip_info = (struct dcmi_chip_info_v2){.chip_type = "Ascend", .chip_ver = "V1", .aicore_cnt = card->core};
    snprintf((char *)chip_info->npu_name, sizeof chip_info->npu_name, "%s", card->model);
    return text((char *)chip_info->chip_name, sizeof chip_info->chip_name, card->model);
}

EXPORT int dcmi_get_device_pcie_info_v2(int card_id, int device_id, struct dcmi_pcie_info_all *pcie_info)
{
    DEVICE(pcie_info);
    *pcie_info = (struct dcmi_pcie_info_all){.venderid = 0x19e5, .subvenderid = 0x19e5, .domain = (int)card->domain,
                                             .bdf_busid = card->bus, .bdf_deviceid = card->device,
                                             .bdf_funcid = card->function,
                                             .deviceid = has_hbm(card) ? 0xd802 : 0xd500};
    return DCMI_OK;
}

/* The five words of the rack's uuid, in hexadecimal; the card's own when it gives none. The older call. */
EXPORT int dcmi_get_device_die(int card_id, int device_id, struct dcmi_die_id *die_id)
{
    DEVICE(die_id);
    unsigned *die = die_id->soc_die;
    if (sscanf(card->uuid, "%x %x %x %x %x", &die[0], &die[1], &die[2], &die[3], &die[4]) != 5)
        for (unsigned i = 0; i < 5; i++)
            die[i] = (unsigned)rack_hash(card->key + i, card->uuid, strlen(card->uuid));
    return DCMI_OK;
}

EXPORT int dcmi_get_device_die_v2(int card_id, int device_id, enum dcmi_die_type input_type, struct dcmi_die_id *die_id)
{
    DEVICE(die_id);
    if (input_type != NDIE && input_type != VDIE)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    return dcmi_get_device_die(card_id, device_id, die_id);
}

EXPORT int dcmi_get_device_memory_info_v3(int card_id, int device_id, struct dcmi_get_memory_info_stru *memory_info)
{
    DEVICE(memory_info);
    if (has_hbm(card))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *memory_info = (struct dcmi_get_memory_info_stru){.memory_size = mebibytes(card->memory), .freq = 1600,
                                                      .memory_available = mebibytes(card->memory - card->used),
                                                      .hugepagesize = 2048,
                                                      .utiliza = (unsigned)(card->used * 100 / card->memory)};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *hbm_info)
{
    DEVICE(hbm_info);
    if (!has_hbm(card))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *hbm_info = (struct dcmi_hbm_info){.memory_size = mebibytes(card->memory), .memory_usage = mebibytes(card->used),
                                       .freq = 1600, .temp = 45};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_utilization_rate(int card_id, int device_id, int input_type, unsigned int *utilization_rate)
{
    DEVICE(utilization_rate);
    if (input_type != UTILIZATION_AICORE && input_type != (has_hbm(card) ? UTILIZATION_HBM : UTILIZATION_MEMORY))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *utilization_rate = input_type == UTILIZATION_AICORE ? card->busy : (unsigned)(card->used * 100 / card->memory);
    return DCMI_OK;
}

/* ok, warning or alarm; all else is critical */
EXPORT int dcmi_get_device_health(int card_id, int device_id, unsigned int *health)
{
    DEVICE(health);
    static const char *const words[] = {"ok", "warning", "alarm"};
    for (*health = 0; *health < 3 && strcmp(card->health, words[*health]); ++*health)
        ;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info *proc_info, int *proc_num)
{
    DEVICE(proc_num);
    struct shelf_process processes[32]; /* as many as the caller is to have room for */
    if (!proc_info)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    *proc_num = (int)shelf_processes(card, processes, 32);
    for (int i = 0; i < *proc_num; i++)
        proc_info[i] = (struct dcmi_proc_mem_info){(int)processes[i].pid, processes[i].memory};
    return DCMI_OK;
}

EXPORT int dcmi_get_affinity_cpu_info_by_device_id(int card_id, int device_id, char *affinity_cpu, int *length)
{
    DEVICE_NOISE(affinity_cpu, 32);
    const char *cpus = rack_text(card->section, "cpus", NULL);
    if (!length)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (!cpus)
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *length = (int)strlen(cpus);
    return text(affinity_cpu, 32, cpus);
}

EXPORT int dcmi_get_topo_info_by_device_id(int card_id, int device_id, int card_id2, int device_id2, int *topo)
{
    static const struct {
        const char *word;
        enum dcmi_topology topology;
    } words[] = {{"HCCS", DCMI_TOPO_TYPE_HCCS}, {"HCCS_SW", DCMI_TOPO_TYPE_HCCS_SW}, {"SIO", DCMI_TOPO_TYPE_SIO},
                 {"PIX", DCMI_TOPO_TYPE_PIX}, {"PXB", DCMI_TOPO_TYPE_PXB}, {"PHB", DCMI_TOPO_TYPE_PHB},
                 {"NODE", DCMI_TOPO_TYPE_PHB}};
    DEVICE(topo);
    const struct shelf_card *other = device(card_id2, device_id2);
    char word[16];
    if (!other)
        return DCMI_ERR_CODE_DEVICE_NOT_EXIST;
    *topo = other == card ? DCMI_TOPO_TYPE_SELF : DCMI_TOPO_TYPE_SYS;
    shelf_link(card, other, word);
    for (unsigned i = 0; other != card && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word))
            *topo = words[i].topology;
    return DCMI_OK;
}

/* What is left of the card's cores, AI CPUs and memory. Under the lock. */
static struct shape free_of(const struct shelf_card *card)
{
    const struct menu *menu = menu_of(card);
    struct shape left = {"", card->core, menu ? number(card, "aicpu", menu->aicpu) : 0, mebibytes(card->memory)};
    for (const struct shelf_slice *slice = NULL; (slice = shelf_next(card, 0, slice));) {
        const struct shape *shape = shape_of(card, slice->name);
        left.aicore -= shape->aicore;
        left.aicpu -= shape->aicpu;
        left.memory -= shape->memory;
    }
    return left;
}

EXPORT int dcmi_create_vdevice(int card_id, int device_id, struct dcmi_create_vdev_res_stru *vdev,
                               struct dcmi_create_vdev_out *out)
{
    DEVICE(out);
    unsigned first = 100 + 16 * card->place, id = vdev ? vdev->vdev_id : 0; /* sixteen ids a chip, as documented */
    if (!vdev || strnlen(vdev->template_name, 32) == 32 || (id != UINT32_MAX && (id < first || id >= first + 16)))
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (!menu_of(card))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    const struct shape *shape = shape_of(card, vdev->template_name);
    if (!shape)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    shelf_lock();
    struct shape left = free_of(card);
    for (unsigned i = 0; id == UINT32_MAX && i < 16; i++)
        if (!shelf_find(card, 0, first + i))
            id = first + i;
    struct shelf_slice *slice = NULL;
    if (id != UINT32_MAX && !shelf_find(card, 0, id) && left.aicore >= shape->aicore && left.aicpu >= shape->aicpu &&
        left.memory >= shape->memory)
        slice = shelf_cut(card, 0, id);
    if (slice)
        snprintf(slice->name, sizeof slice->name, "%s", shape->name);
    shelf_unlock();
    *out = (struct dcmi_create_vdev_out){.vdev_id = id, .pcie_bus = card->bus, .pcie_device = card->device,
                                         .pcie_func = id - first + 1};
    return slice ? DCMI_OK : DCMI_ERR_CODE_RESOURCE_OCCUPIED;
}

EXPORT int dcmi_set_destroy_vdevice(int card_id, int device_id, unsigned int vdevid)
{
    DEVICE_NOISE(&vdevid, 0);
    shelf_lock();
    struct shelf_slice *slice = shelf_find(card, 0, vdevid);
    bool used = slice && shelf_in_use(slice);
    if (slice && !used)
        slice->card = 0;
    shelf_unlock();
    return !slice ? DCMI_ERR_CODE_DEVICE_NOT_EXIST : used ? DCMI_ERR_CODE_RESOURCE_OCCUPIED : DCMI_OK;
}

static struct dcmi_computing_resource computing(const struct shape *shape)
{
    return (struct dcmi_computing_resource){.aic = (float)shape->aicore, .aiv = (float)shape->aicore,
                                            .memory_size = shape->memory, .device_aicpu = (unsigned short)shape->aicpu,
                                            .vdev_memory_total = shape->memory, .vdev_memory_free = shape->memory};
}

static int query_vdevice(const struct shelf_card *card, struct dcmi_vdev_query_stru *query)
{
    shelf_lock();
    const struct shelf_slice *slice = shelf_find(card, 0, query->vdev_id);
    query->query_info = (struct dcmi_vdev_query_info){0};
    if (slice) {
        snprintf(query->query_info.name, sizeof query->query_info.name, "%.15s", slice->name);
        query->query_info.vfid = slice->id % 16;
        query->query_info.is_container_used = shelf_in_use(slice);
        query->query_info.computing = computing(shape_of(card, slice->name));
    }
    shelf_unlock();
    return slice ? DCMI_OK : DCMI_ERR_CODE_DEVICE_NOT_EXIST;
}

EXPORT int dcmi_get_device_info(int card_id, int device_id, enum dcmi_main_cmd main_cmd, unsigned int sub_cmd, void *buf,
                                unsigned int *size)
{
    DEVICE_NOISE(buf, size ? *size : 0);
    const struct menu *menu = menu_of(card);
    if (!size)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (main_cmd != DCMI_MAIN_CMD_VDEV_MNG || !menu)
        return DCMI_ERR_CODE_NOT_SUPPORT;
    if (sub_cmd == VDEV_RESOURCE || sub_cmd == VDEV_ACTIVITY)
        return *size < sizeof(struct dcmi_vdev_query_stru) ? DCMI_ERR_CODE_INVALID_PARAMETER : query_vdevice(card, buf);
    shelf_lock();
    struct shape left = free_of(card);
    struct dcmi_soc_total_resource total = {0};
    for (const struct shelf_slice *slice = NULL; (slice = shelf_next(card, 0, slice)) && total.vdev_num < 32;)
        total.vdev_id[total.vdev_num++] = slice->id;
    shelf_unlock();
    if (sub_cmd == VDEV_TOTAL && *size >= sizeof total) {
        left = (struct shape){"", card->core, number(card, "aicpu", menu->aicpu), mebibytes(card->memory)};
        total.computing = computing(&left);
        memcpy(buf, &total, *size = sizeof total);
        return DCMI_OK;
    }
    if (sub_cmd == VDEV_FREE && *size >= sizeof(struct dcmi_soc_free_resource)) {
        *(struct dcmi_soc_free_resource *)buf = (struct dcmi_soc_free_resource){.computing = computing(&left)};
        *size = sizeof(struct dcmi_soc_free_resource);
        return DCMI_OK;
    }
    return DCMI_ERR_CODE_INVALID_PARAMETER;
}
