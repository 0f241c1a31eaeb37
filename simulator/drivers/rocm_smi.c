/* A simulated librocm_smi64.so for Hygon cards; rocm_smi_amd.c is AMD's. AMD's runtimes run programs on the same cards
 * through kfd.h.
 *
 * A [device]'s uuid is the card's unique id, such as 7100f95cee823041. The word for a link past PCIe is XGMI.
 */
#include "rocm_smi.h"

#include "amd.h"
#include "management_fake.h"

#include <stdio.h>
#include <string.h>

#ifndef VENDOR
#define VENDOR    "hygon"
#define VENDOR_ID 0x1d94 /* PCI's */
#define DRIVER    "6.2.26"
#endif

const char fake_vendor[] = VENDOR;

/* The cards as the libraries of programs see them, opened once. */
static struct nvidia *cards(void)
{
    static struct nvidia *opened;
    struct nvidia *last_known = __atomic_load_n(&opened, __ATOMIC_ACQUIRE), *no_cards = NULL;
    if (!last_known && (last_known = nvidia_open()))
        __atomic_compare_exchange_n(&opened, &no_cards, last_known, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return opened;
}

static uint64_t unique_id_of(const struct fake_card *card)
{
    for (unsigned i = 0; cards() && i < cards()->device_count; i++)
        if (fake_card(i) == card)
            return amd_unique_id(&cards()->devices[i]);
    return 0;
}

/* The processes that run on a card, without those that the rack gives. */
static unsigned running(unsigned index, struct fake_process *processes, unsigned capacity)
{
    static struct engine_tenant tenants[ENGINE_TENANTS];
    if (!cards() || index >= cards()->device_count)
        return 0;
    unsigned count = engine_tenants(cards()->engine, cards()->devices[index].first_card, tenants);
    unsigned visible_count = 0;
    for (unsigned i = 0; i < count && visible_count < capacity; i++)
        if (tenants[i].pid)
            processes[visible_count++] = (struct fake_process){(unsigned)tenants[i].pid, tenants[i].memory_bytes};
    return visible_count;
}

/* The processes that the rack gives for a card, and those that run on it. */
static unsigned processes_on(unsigned index, const struct fake_card *card, struct fake_process *processes,
                             unsigned capacity)
{
    unsigned count = fake_processes(card, processes, capacity);
    return count + running(index, processes + count, capacity - count);
}

/* PCI device ids, as Hygon's device plugin lists them. */
static const struct {
    const char *model;
    uint16_t id;
} ids[] = {{"Z100", 0x54b7}, {"Z100L", 0x55b7}, {"K100", 0x62b7}, {"K100_AI", 0x6210}};

static bool is_null(const void *out)
{
    return !out;
}

/* The card a call is about, or the end of the call. */
#define CARD_NOISE(out, size)                                                                                          \
    const struct fake_card *card = fake_card(dv_ind);                                                                  \
    FAULTS(card, out, size);                                                                                           \
    if (!fake_opened())                                                                                                \
        return RSMI_STATUS_INIT_ERROR;                                                                                 \
    if (!card || !faults_spare(card) || is_null(out))                                                                  \
    return RSMI_STATUS_INVALID_ARGS
#define CARD(out) CARD_NOISE((out), sizeof *(out))

EXPORT rsmi_status_t rsmi_init(uint64_t init_flags)
{
    (void)init_flags;
    FAULTS(NULL, NULL, 0);
    return fake_open() ? RSMI_STATUS_SUCCESS : RSMI_STATUS_INIT_ERROR;
}

EXPORT rsmi_status_t rsmi_shut_down(void)
{
    FAULTS(NULL, NULL, 0);
    fake_close();
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_status_string(rsmi_status_t status, const char **status_string)
{
    static const char *const names[] = {
        "success",          "invalid arguments",  "not supported",       "file error",           "permission denied",
        "out of resources", "internal exception", "input out of bounds", "initialization error", "not yet implemented",
        "not found",        "insufficient size"};
    *status_string = (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown error";
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_num_monitor_devices(uint32_t *num_devices)
{
    FAULTS(NULL, num_devices, sizeof *num_devices);
    if (!fake_opened())
        return RSMI_STATUS_INIT_ERROR;
    if (!num_devices)
        return RSMI_STATUS_INVALID_ARGS;
    *num_devices = fake_count();
    return RSMI_STATUS_SUCCESS;
}

static rsmi_status_t text(char *out, size_t capacity, const char *value)
{
    return (size_t)snprintf(out, capacity, "%s", value) < capacity ? RSMI_STATUS_SUCCESS
                                                                   : RSMI_STATUS_INSUFFICIENT_SIZE;
}

EXPORT rsmi_status_t rsmi_version_str_get(rsmi_sw_component_t component, char *ver_str, uint32_t len)
{
    FAULTS(NULL, ver_str, len);
    if (!ver_str || component != RSMI_SW_COMP_DRIVER)
        return RSMI_STATUS_INVALID_ARGS;
    return text(ver_str, len, fake_driver(VENDOR, DRIVER));
}

EXPORT rsmi_status_t rsmi_dev_id_get(uint32_t dv_ind, uint16_t *id)
{
    CARD(id);
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++)
        if (!strcmp(ids[i].model, card->model)) {
            *id = ids[i].id;
            return RSMI_STATUS_SUCCESS;
        }
    return RSMI_STATUS_NOT_SUPPORTED;
}

EXPORT rsmi_status_t rsmi_dev_vendor_id_get(uint32_t dv_ind, uint16_t *id)
{
    CARD(id);
    *id = VENDOR_ID;
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_dev_name_get(uint32_t dv_ind, char *name, size_t len)
{
    CARD_NOISE(name, len);
    return text(name, len, card->model);
}

EXPORT rsmi_status_t rsmi_dev_serial_number_get(uint32_t dv_ind, char *serial_num, uint32_t len)
{
    CARD_NOISE(serial_num, len);
    return text(serial_num, len, card->serial);
}

EXPORT rsmi_status_t rsmi_dev_unique_id_get(uint32_t dv_ind, uint64_t *id)
{
    CARD(id);
    *id = unique_id_of(card);
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_dev_pci_id_get(uint32_t dv_ind, uint64_t *bdfid)
{
    CARD(bdfid);
    *bdfid = (uint64_t)card->domain << 32 | card->bus << 8 | card->device << 3 | card->function;
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_topo_get_numa_node_number(uint32_t dv_ind, uint32_t *numa_node)
{
    CARD(numa_node);
    *numa_node = (uint32_t)card->numa_node;
    return card->numa_node < 0 ? RSMI_STATUS_NOT_SUPPORTED : RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_topo_numa_affinity_get(uint32_t dv_ind, uint32_t *numa_node)
{
    CARD(numa_node);
    *numa_node = (uint32_t)card->numa_node; /* -1: the machine has no NUMA, as in sysfs */
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_dev_memory_total_get(uint32_t dv_ind, rsmi_memory_type_t mem_type, uint64_t *total)
{
    CARD(total);
    *total = card->memory_bytes;
    return mem_type == RSMI_MEM_TYPE_VRAM ? RSMI_STATUS_SUCCESS : RSMI_STATUS_NOT_SUPPORTED;
}

EXPORT rsmi_status_t rsmi_dev_memory_usage_get(uint32_t dv_ind, rsmi_memory_type_t mem_type, uint64_t *used)
{
    struct fake_process processes[64];
    CARD(used);
    *used = card->used_bytes;
    for (unsigned i = running(dv_ind, processes, 64); i-- > 0;)
        *used += processes[i].memory_bytes;
    return mem_type == RSMI_MEM_TYPE_VRAM ? RSMI_STATUS_SUCCESS : RSMI_STATUS_NOT_SUPPORTED;
}

EXPORT rsmi_status_t rsmi_dev_busy_percent_get(uint32_t dv_ind, uint32_t *busy_percent)
{
    CARD(busy_percent);
    *busy_percent = card->busy_percent;
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_dev_temp_metric_get(uint32_t dv_ind, uint32_t sensor_type, rsmi_temperature_metric_t metric,
                                              int64_t *temperature)
{
    CARD(temperature);
    *temperature = card->temperature_c * 1000; /* thousandths of a degree */
    bool known = card->temperature_c && sensor_type == RSMI_TEMP_TYPE_EDGE && metric == RSMI_TEMP_CURRENT;
    return known ? RSMI_STATUS_SUCCESS : RSMI_STATUS_NOT_SUPPORTED;
}

static rsmi_status_t microwatts(unsigned watts, uint64_t *power)
{
    *power = UINT64_C(1000000) * watts;
    return watts ? RSMI_STATUS_SUCCESS : RSMI_STATUS_NOT_SUPPORTED;
}

EXPORT rsmi_status_t rsmi_dev_power_ave_get(uint32_t dv_ind, uint32_t sensor_ind, uint64_t *power)
{
    CARD(power);
    return sensor_ind ? RSMI_STATUS_NOT_SUPPORTED : microwatts(card->power_w, power);
}

EXPORT rsmi_status_t rsmi_dev_power_cap_get(uint32_t dv_ind, uint32_t sensor_ind, uint64_t *cap)
{
    CARD(cap);
    return sensor_ind ? RSMI_STATUS_NOT_SUPPORTED : microwatts(card->power_limit_w, cap);
}

/* A card that is not well has errors that its memory could not correct. */
EXPORT rsmi_status_t rsmi_dev_ecc_count_get(uint32_t dv_ind, rsmi_gpu_block_t block, rsmi_error_count_t *ec)
{
    CARD(ec);
    *ec = (rsmi_error_count_t){0, block == 1 && strcmp(card->health, "ok")};
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_topo_get_link_type(uint32_t dv_ind_src, uint32_t dv_ind_dst, uint64_t *hops,
                                             RSMI_IO_LINK_TYPE *type)
{
    const uint32_t dv_ind = dv_ind_src;
    const struct fake_card *peer = fake_card(dv_ind_dst);
    char link_name[16];
    CARD(type);
    if (!hops || !peer || peer == card)
        return RSMI_STATUS_INVALID_ARGS;
    fake_link(card, peer, link_name);
    *type = !strcmp(link_name, "XGMI") ? RSMI_IOLINK_TYPE_XGMI : RSMI_IOLINK_TYPE_PCIEXPRESS;
    *hops = *type == RSMI_IOLINK_TYPE_XGMI ? 1 : strcmp(link_name, "SYS") ? 2 : 3;
    return RSMI_STATUS_SUCCESS;
}

static bool is_listed(uint32_t pid, const uint32_t *pids, uint32_t count)
{
    while (count > 0)
        if (pids[--count] == pid)
            return true;
    return false;
}

/* Each process once, without figures: the library has those per card only. Seen on a Hygon card (gpustack-operator's
 * notes), and in rocm_smi_kfd.cc of AMD's. */
EXPORT rsmi_status_t rsmi_compute_process_info_get(rsmi_process_info_t *procs, uint32_t *num_items)
{
    FAULTS(NULL, num_items, sizeof *num_items);
    const struct fake_card *card;
    struct fake_process processes[64];
    uint32_t pids[512], count = 0;
    if (!num_items)
        return RSMI_STATUS_INVALID_ARGS;
    for (unsigned i = 0; (card = fake_card(i)); i++)
        for (unsigned process = 0, process_count = processes_on(i, card, processes, 64);
             process < process_count && count < 512; process++)
            if (!is_listed(processes[process].pid, pids, count))
                pids[count++] = processes[process].pid;
    if (procs && count > *num_items)
        return RSMI_STATUS_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; procs && i < count; i++)
        procs[i] = (rsmi_process_info_t){.process_id = pids[i]};
    *num_items = count;
    return RSMI_STATUS_SUCCESS;
}

EXPORT rsmi_status_t rsmi_compute_process_info_by_device_get(uint32_t pid, uint32_t dv_ind, rsmi_process_info_t *proc)
{
    CARD(proc);
    struct fake_process processes[64];
    for (unsigned i = processes_on(dv_ind, card, processes, 64); i-- > 0;)
        if (processes[i].pid == pid) {
            *proc = (rsmi_process_info_t){.process_id = pid, .vram_usage = processes[i].memory_bytes};
            return RSMI_STATUS_SUCCESS;
        }
    return RSMI_STATUS_NOT_FOUND;
}
