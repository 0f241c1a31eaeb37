/* A simulated libdcmi.so for Ascend cards.
 *
 * Further keys of a [device]: card and chip (their ids; by default a card each) and cpus (the near host CPUs, such as
 * 0-23). A 910C is two [device]s of model Ascend910 with the same card and chips 0 and 1.
 */
#include "ascend.h"
#include "dcmi_card.h"

#include <stdio.h>
#include <string.h>

EXPORT int dcmi_init(void)
{
    FAULTS(NULL, NULL, 0);
    return fake_open() ? DCMI_OK : DCMI_ERR_CODE_INNER_ERR;
}

static int text(char *out, int capacity, const char *value)
{
    if (!out || capacity <= 0)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    return snprintf(out, (size_t)capacity, "%s", value) < capacity ? DCMI_OK : DCMI_ERR_CODE_INVALID_PARAMETER;
}

EXPORT int dcmi_get_dcmi_version(char *dcmi_ver, int buf_size)
{
    FAULTS(NULL, dcmi_ver, (uint64_t)buf_size);
    return text(dcmi_ver, buf_size, "25.5.1");
}

EXPORT int dcmi_get_driver_version(char *driver_ver, unsigned int buf_size)
{
    FAULTS(NULL, driver_ver, buf_size);
    return fake_opened() ? text(driver_ver, (int)buf_size, fake_driver("ascend", "25.5.1")) : DCMI_ERR_CODE_NOT_REDAY;
}

EXPORT int dcmi_get_card_list(int *card_num, int *card_list, int list_len)
{
    FAULTS(NULL, card_num, sizeof *card_num);
    const struct fake_card *card;
    if (!card_num || !card_list)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    if (!fake_opened())
        return DCMI_ERR_CODE_NOT_REDAY;
    *card_num = 0;
    for (unsigned i = 0; (card = fake_card(i)); i++) {
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
    const struct fake_card *card;
    if (!device_num)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    *device_num = 0;
    for (unsigned i = 0; (card = fake_card(i)); i++)
        *device_num += (int)card_of(card) == card_id;
    return *device_num ? DCMI_OK : DCMI_ERR_CODE_DEVICE_NOT_EXIST;
}

EXPORT int dcmi_get_device_type(int card_id, int device_id, enum dcmi_unit_type *device_type)
{
    DEVICE(device_type);
    *device_type = NPU_TYPE;
    return DCMI_OK;
}

/* Physical ids are the positions of cards. Logical ids count the cards that have not vanished. */
EXPORT int dcmi_get_device_logic_id(int *device_logic_id, int card_id, int device_id)
{
    DEVICE(device_logic_id);
    for (*device_logic_id = 0; fake_card((unsigned)*device_logic_id) != card; ++*device_logic_id)
        ;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_phyid_from_logicid(unsigned int logicid, unsigned int *phyid)
{
    const struct fake_card *card = fake_card(logicid);
    FAULTS(card, phyid, sizeof *phyid);
    if (!card || !phyid)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    *phyid = card->position;
    return DCMI_OK;
}

EXPORT int dcmi_get_device_chip_info_v2(int card_id, int device_id, struct dcmi_chip_info_v2 *chip_info)
{
    DEVICE(chip_info);
    *chip_info = (struct dcmi_chip_info_v2){.chip_type = "Ascend", .chip_ver = "V1", .aicore_cnt = card->core_units};
    snprintf((char *)chip_info->npu_name, sizeof chip_info->npu_name, "%s", card->model);
    return text((char *)chip_info->chip_name, sizeof chip_info->chip_name, card->model);
}

EXPORT int dcmi_get_device_pcie_info_v2(int card_id, int device_id, struct dcmi_pcie_info_all *pcie_info)
{
    DEVICE(pcie_info);
    *pcie_info = (struct dcmi_pcie_info_all){.venderid = 0x19e5,
                                             .subvenderid = 0x19e5,
                                             .domain = (int)card->domain,
                                             .bdf_busid = card->bus,
                                             .bdf_deviceid = card->device,
                                             .bdf_funcid = card->function,
                                             .deviceid = ascend_has_hbm(card) ? 0xd802 : 0xd500};
    return DCMI_OK;
}

/* The older call. */
EXPORT int dcmi_get_device_die(int card_id, int device_id, struct dcmi_die_id *die_id)
{
    DEVICE(die_id);
    ascend_die(card, die_id->soc_die);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_die_v2(int card_id, int device_id, enum dcmi_die_type input_type, struct dcmi_die_id *die_id)
{
    DEVICE(die_id);
    if (input_type != NDIE && input_type != VDIE)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    return dcmi_get_device_die(card_id, device_id, die_id);
}

/* With what programs have of it (ascend.h), beside what the rack says. */
static uint64_t used_bytes_of(const struct fake_card *card)
{
    struct engine *engine = ascend_engine();
    return card->used_bytes + (engine ? engine_used(engine, card->position) : 0);
}

static unsigned used_percent_of(const struct fake_card *card)
{
    return (unsigned)(used_bytes_of(card) * 100 / card->memory_bytes);
}

EXPORT int dcmi_get_device_memory_info_v3(int card_id, int device_id, struct dcmi_get_memory_info_stru *memory_info)
{
    DEVICE(memory_info);
    if (ascend_has_hbm(card))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *memory_info =
        (struct dcmi_get_memory_info_stru){.memory_size = mebibytes(card->memory_bytes),
                                           .freq = 1600,
                                           .memory_available = mebibytes(card->memory_bytes - used_bytes_of(card)),
                                           .hugepagesize = 2048,
                                           .utiliza = used_percent_of(card)};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *hbm_info)
{
    DEVICE(hbm_info);
    if (!ascend_has_hbm(card))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *hbm_info = (struct dcmi_hbm_info){.memory_size = mebibytes(card->memory_bytes),
                                       .memory_usage = mebibytes(used_bytes_of(card)),
                                       .freq = 1600,
                                       .temp = (int)card->temperature_c};
    return DCMI_OK;
}

static struct engine_tenant *tenants_of(const struct fake_card *card, unsigned *count)
{
    static __thread struct engine_tenant tenants[ENGINE_TENANTS];
    struct engine *engine = ascend_engine();
    *count = engine ? engine_tenants(engine, card->position, tenants) : 0;
    return tenants;
}

static unsigned busy_percent_of(const struct fake_card *card)
{
    unsigned count, percent = card->busy_percent;
    const struct engine_tenant *tenants = tenants_of(card, &count);
    for (unsigned i = 0; i < count; i++)
        percent += (unsigned)(tenants[i].busy_share * 100 + 0.5);
    return percent < 100 ? percent : 100;
}

EXPORT int dcmi_get_device_utilization_rate(int card_id, int device_id, int input_type, unsigned int *utilization_rate)
{
    DEVICE(utilization_rate);
    if (input_type != UTILIZATION_AICORE && input_type != (ascend_has_hbm(card) ? UTILIZATION_HBM : UTILIZATION_MEMORY))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *utilization_rate = input_type == UTILIZATION_AICORE ? busy_percent_of(card) : used_percent_of(card);
    return DCMI_OK;
}

EXPORT int dcmi_get_device_multi_utilization_rate(int card_id, int device_id,
                                                  struct dcmi_multi_utilization_info *util_info)
{
    DEVICE(util_info);
    unsigned busy_percent = busy_percent_of(card);
    *util_info = (struct dcmi_multi_utilization_info){.aicore_util = busy_percent, .npu_util = busy_percent};
    return DCMI_OK;
}

EXPORT int dcmi_get_device_power_info(int card_id, int device_id, int *power)
{
    DEVICE(power);
    *power = (int)card->power_w * 10;
    return card->power_w ? DCMI_OK : DCMI_ERR_CODE_NOT_SUPPORT;
}

EXPORT int dcmi_get_device_temperature(int card_id, int device_id, int *temperature)
{
    DEVICE(temperature);
    *temperature = (int)card->temperature_c;
    return card->temperature_c ? DCMI_OK : DCMI_ERR_CODE_NOT_SUPPORT;
}

/* A chip that is not well has errors that its memory could not correct. */
EXPORT int dcmi_get_device_ecc_info(int card_id, int device_id, enum dcmi_device_type input_type,
                                    struct dcmi_ecc_info *device_ecc_info)
{
    DEVICE(device_ecc_info);
    if (input_type != (ascend_has_hbm(card) ? DCMI_DEVICE_TYPE_HBM : DCMI_DEVICE_TYPE_DDR))
        return DCMI_ERR_CODE_NOT_SUPPORT;
    *device_ecc_info = (struct dcmi_ecc_info){.enable_flag = 1,
                                              .double_bit_error_cnt = strcmp(card->health, "ok") != 0};
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

#define PROCESSES 32 /* as many as the caller is to have room for */

EXPORT int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info *proc_info,
                                         int *proc_num)
{
    DEVICE(proc_num);
    struct fake_process processes[PROCESSES];
    unsigned tenant_count;
    if (!proc_info)
        return DCMI_ERR_CODE_INVALID_PARAMETER;
    *proc_num = (int)fake_processes(card, processes, PROCESSES);
    for (int i = 0; i < *proc_num; i++)
        proc_info[i] = (struct dcmi_proc_mem_info){(int)processes[i].pid, processes[i].memory_bytes};
    const struct engine_tenant *tenants = tenants_of(card, &tenant_count);
    for (unsigned i = 0; i < tenant_count && *proc_num < PROCESSES; i++)
        if (tenants[i].pid)
            proc_info[(*proc_num)++] = (struct dcmi_proc_mem_info){tenants[i].pid, tenants[i].memory_bytes};
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
                 {"PIX", DCMI_TOPO_TYPE_PIX},   {"PXB", DCMI_TOPO_TYPE_PXB},         {"PHB", DCMI_TOPO_TYPE_PHB},
                 {"NODE", DCMI_TOPO_TYPE_PHB}};
    DEVICE(topo);
    const struct fake_card *peer = device(card_id2, device_id2);
    char word[16];
    if (!peer)
        return DCMI_ERR_CODE_DEVICE_NOT_EXIST;
    *topo = peer == card ? DCMI_TOPO_TYPE_SELF : DCMI_TOPO_TYPE_SYS;
    fake_link(card, peer, word);
    for (unsigned i = 0; peer != card && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word))
            *topo = words[i].topology;
    return DCMI_OK;
}
