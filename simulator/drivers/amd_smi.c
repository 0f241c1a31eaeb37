/* libamd_smi.so, with the names that AMD's binding for Python (amdsmi 7.0) takes when it is imported. It answers what
 * ROCm SMI's answers, which AMD's is built of, too (amd_smi.cc: rsmi_wrapper); a rack's faults are those of rsmi_*.
 *
 * A card is a socket of its own, and both its handles are one more than its index.
 */
#include "amd_smi.h"

#include "rocm_smi_amd.c"

#define UNKNOWN      UINT32_MAX /* of values that the library does not report */
#define NOT_MEASURED 0xffffu    /* of a figure that the card does not measure, as in its table of 16 bits each */

static amdsmi_status_t status_of(rsmi_status_t status)
{
    switch (status) {
    case RSMI_STATUS_SUCCESS: return AMDSMI_STATUS_SUCCESS;
    case RSMI_STATUS_INVALID_ARGS: return AMDSMI_STATUS_INVAL;
    case RSMI_STATUS_NOT_SUPPORTED: return AMDSMI_STATUS_NOT_SUPPORTED;
    case RSMI_STATUS_NOT_FOUND: return AMDSMI_STATUS_NOT_FOUND;
    case RSMI_STATUS_INSUFFICIENT_SIZE: return AMDSMI_STATUS_INSUFFICIENT_SIZE;
    default: return AMDSMI_STATUS_INIT_ERROR;
    }
}

/* What a function answers that is ROCm SMI's by another name. */
#define ASK(function, handle, ...)                                                                                     \
    (!fake_opened() ? AMDSMI_STATUS_NOT_INIT : status_of(function(index_of(handle), __VA_ARGS__)))

/* Finds the card of a call, or ends the call. The result is zeroed first. */
#define ANSWER(handle, out)                                                                                            \
    const struct fake_card *card = fake_card(index_of(handle));                                                        \
    if (!fake_opened())                                                                                                \
        return AMDSMI_STATUS_NOT_INIT;                                                                                 \
    if (!card || !faults_spare(card) || !(out))                                                                        \
        return AMDSMI_STATUS_INVAL;                                                                                    \
    memset((out), 0, sizeof *(out))

static uint32_t index_of(amdsmi_processor_handle handle)
{
    return (uint32_t)(uintptr_t)handle - 1;
}

EXPORT amdsmi_status_t amdsmi_init(uint64_t init_flags)
{
    return status_of(rsmi_init(init_flags));
}

EXPORT amdsmi_status_t amdsmi_shut_down(void)
{
    return status_of(rsmi_shut_down());
}

EXPORT amdsmi_status_t amdsmi_status_code_to_string(amdsmi_status_t status, const char **status_string)
{
    *status_string = status == AMDSMI_STATUS_SUCCESS ? "AMDSMI_STATUS_SUCCESS" : "an error";
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_lib_version(amdsmi_version_t *version)
{
    if (!version)
        return AMDSMI_STATUS_INVAL;
    *version = (amdsmi_version_t){26, 0, 2, "26.0.2"}; /* of ROCm 7.0.2 */
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_socket_handles(uint32_t *socket_count, amdsmi_socket_handle *socket_handles)
{
    uint32_t count;
    if (!fake_opened())
        return AMDSMI_STATUS_NOT_INIT;
    if (!socket_count)
        return AMDSMI_STATUS_INVAL;
    rsmi_status_t status = rsmi_num_monitor_devices(&count);
    if (status != RSMI_STATUS_SUCCESS)
        return status_of(status);
    if (!socket_handles || count < *socket_count)
        *socket_count = count;
    for (uintptr_t i = 0; socket_handles && i < *socket_count; i++)
        socket_handles[i] = (amdsmi_socket_handle)(i + 1);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_processor_handles(amdsmi_socket_handle socket_handle, uint32_t *processor_count,
                                                    amdsmi_processor_handle *processor_handles)
{
    if (!fake_opened())
        return AMDSMI_STATUS_NOT_INIT;
    if (!processor_count || !fake_card(index_of(socket_handle)))
        return AMDSMI_STATUS_INVAL;
    if (processor_handles && *processor_count > 0)
        processor_handles[0] = socket_handle;
    if (!processor_handles || *processor_count > 1)
        *processor_count = 1;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_processor_type(amdsmi_processor_handle handle, processor_type_t *type)
{
    ANSWER(handle, type);
    *type = AMDSMI_PROCESSOR_TYPE_AMD_GPU;
    return AMDSMI_STATUS_SUCCESS;
}

static uint64_t address_of(const struct fake_card *card)
{
    amdsmi_bdf_t bdf = {{card->function, card->device, card->bus, card->domain}};
    return bdf.as_uint;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_device_bdf(amdsmi_processor_handle handle, amdsmi_bdf_t *bdf)
{
    ANSWER(handle, bdf);
    bdf->as_uint = address_of(card);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_processor_handle_from_bdf(amdsmi_bdf_t bdf, amdsmi_processor_handle *handle)
{
    const struct fake_card *card;
    if (!fake_opened())
        return AMDSMI_STATUS_NOT_INIT;
    for (uintptr_t i = 0; (card = fake_card((unsigned)i)); i++)
        if (address_of(card) == bdf.as_uint) {
            *handle = (amdsmi_processor_handle)(i + 1);
            return AMDSMI_STATUS_SUCCESS;
        }
    return AMDSMI_STATUS_NOT_FOUND;
}

/* As amd_smi_uuid.cc makes it: of the unique id, but for its sixth byte, and of the PCI device's id, which is not
 * simulated. */
EXPORT amdsmi_status_t amdsmi_get_gpu_device_uuid(amdsmi_processor_handle handle, unsigned *uuid_length, char *uuid)
{
    uint64_t id;
    amdsmi_status_t status = ASK(rsmi_dev_unique_id_get, handle, &id);
    if (status != AMDSMI_STATUS_SUCCESS)
        return status;
    if (!uuid_length || !uuid || *uuid_length < 37)
        return AMDSMI_STATUS_INVAL;
    snprintf(uuid, *uuid_length, "%02xff0000-0000-1000-80%02x-%04x%08x", (unsigned)(id >> 56),
             (unsigned)(id >> 48 & 0xff), (unsigned)(id >> 32 & 0xffff), (unsigned)id);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_enumeration_info(amdsmi_processor_handle handle, amdsmi_enumeration_info_t *info)
{
    ANSWER(handle, info);
    info->drm_render = info->drm_card = UNKNOWN;
    info->hip_id = index_of(handle);
    info->hsa_id = info->hip_id + 1; /* agents begin with the host */
    snprintf(info->hip_uuid, sizeof info->hip_uuid, "GPU-%016llx", (unsigned long long)unique_id_of(card));
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_asic_info(amdsmi_processor_handle handle, amdsmi_asic_info_t *info)
{
    ANSWER(handle, info);
    snprintf(info->market_name, sizeof info->market_name, "%s", card->model);
    info->vendor_id = info->subvendor_id = VENDOR_ID;
    strcpy(info->vendor_name, "Advanced Micro Devices Inc. [AMD/ATI]");
    snprintf(info->asic_serial, sizeof info->asic_serial, "%016llx", (unsigned long long)unique_id_of(card));
    info->oam_id = info->subsystem_id = UNKNOWN;
    const struct nvidia_device *device = &cards()->devices[index_of(handle)];
    info->num_of_compute_units = device->multiprocessors;
    info->target_graphics_version = (uint64_t)device->major << 8 | (uint64_t)device->minor << 4 | 6; /* kfd_node.c */
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_board_info(amdsmi_processor_handle handle, amdsmi_board_info_t *info)
{
    ANSWER(handle, info);
    snprintf(info->product_name, sizeof info->product_name, "%s", card->model);
    snprintf(info->product_serial, sizeof info->product_serial, "%s", card->serial);
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_driver_info(amdsmi_processor_handle handle, amdsmi_driver_info_t *info)
{
    ANSWER(handle, info);
    strcpy(info->driver_name, "amdgpu");
    return status_of(rsmi_version_str_get(RSMI_SW_COMP_DRIVER, info->driver_version, sizeof info->driver_version));
}

EXPORT amdsmi_status_t amdsmi_get_gpu_memory_total(amdsmi_processor_handle handle, rsmi_memory_type_t type,
                                                   uint64_t *total_bytes)
{
    return ASK(rsmi_dev_memory_total_get, handle, type, total_bytes);
}

EXPORT amdsmi_status_t amdsmi_get_gpu_memory_usage(amdsmi_processor_handle handle, rsmi_memory_type_t type,
                                                   uint64_t *used_bytes)
{
    return ASK(rsmi_dev_memory_usage_get, handle, type, used_bytes);
}

EXPORT amdsmi_status_t amdsmi_get_gpu_vram_info(amdsmi_processor_handle handle, amdsmi_vram_info_t *info)
{
    ANSWER(handle, info);
    info->vram_size = card->memory_bytes >> 20;
    info->vram_bit_width = UNKNOWN;
    info->vram_max_bandwidth = UINT64_MAX;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_vram_usage(amdsmi_processor_handle handle, amdsmi_vram_usage_t *usage)
{
    uint64_t total_bytes, used_bytes;
    amdsmi_status_t status = amdsmi_get_gpu_memory_total(handle, RSMI_MEM_TYPE_VRAM, &total_bytes);
    if (status == AMDSMI_STATUS_SUCCESS)
        status = amdsmi_get_gpu_memory_usage(handle, RSMI_MEM_TYPE_VRAM, &used_bytes);
    if (status == AMDSMI_STATUS_SUCCESS)
        *usage = (amdsmi_vram_usage_t){.vram_total = (uint32_t)(total_bytes >> 20),
                                       .vram_used = (uint32_t)(used_bytes >> 20)};
    return status;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_activity(amdsmi_processor_handle handle, amdsmi_engine_usage_t *info)
{
    ANSWER(handle, info);
    info->umc_activity = info->mm_activity = NOT_MEASURED;
    return ASK(rsmi_dev_busy_percent_get, handle, &info->gfx_activity);
}

EXPORT amdsmi_status_t amdsmi_get_temp_metric(amdsmi_processor_handle handle, uint32_t type,
                                              rsmi_temperature_metric_t metric, int64_t *temperature)
{
    amdsmi_status_t status = ASK(rsmi_dev_temp_metric_get, handle, type, metric, temperature);
    if (status == AMDSMI_STATUS_SUCCESS)
        *temperature /= 1000;
    return status;
}

EXPORT amdsmi_status_t amdsmi_get_power_info(amdsmi_processor_handle handle, amdsmi_power_info_t *info)
{
    ANSWER(handle, info);
    uint64_t power_uw, limit_uw;
    info->gfx_voltage = info->soc_voltage = info->mem_voltage = NOT_MEASURED;
    info->current_socket_power = NOT_MEASURED; /* on MI300 alone */
    bool is_measured = ASK(rsmi_dev_power_ave_get, handle, 0, &power_uw) == AMDSMI_STATUS_SUCCESS;
    bool is_limited = ASK(rsmi_dev_power_cap_get, handle, 0, &limit_uw) == AMDSMI_STATUS_SUCCESS;
    info->average_socket_power = is_measured ? (uint32_t)(power_uw / 1000000) : NOT_MEASURED;
    info->socket_power = info->average_socket_power;
    info->power_limit = is_limited ? (uint32_t)(limit_uw / 1000000) : NOT_MEASURED;
    return AMDSMI_STATUS_SUCCESS;
}

EXPORT amdsmi_status_t amdsmi_get_power_cap_info(amdsmi_processor_handle handle, uint32_t sensor,
                                                 amdsmi_power_cap_info_t *info)
{
    ANSWER(handle, info);
    amdsmi_status_t status = ASK(rsmi_dev_power_cap_get, handle, sensor, &info->power_cap);
    info->default_power_cap = info->max_power_cap = info->power_cap;
    return status;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_total_ecc_count(amdsmi_processor_handle handle, amdsmi_error_count_t *count)
{
    rsmi_error_count_t of_memory;
    amdsmi_status_t status = ASK(rsmi_dev_ecc_count_get, handle, 1, &of_memory);
    if (status == AMDSMI_STATUS_SUCCESS)
        *count = (amdsmi_error_count_t){of_memory.correctable_err, .uncorrectable_count = of_memory.uncorrectable_err};
    return status;
}

EXPORT amdsmi_status_t amdsmi_topo_get_numa_node_number(amdsmi_processor_handle handle, uint32_t *numa_node)
{
    return ASK(rsmi_topo_get_numa_node_number, handle, numa_node);
}

EXPORT amdsmi_status_t amdsmi_get_gpu_topo_numa_affinity(amdsmi_processor_handle handle, uint32_t *numa_node)
{
    return ASK(rsmi_topo_numa_affinity_get, handle, numa_node);
}

EXPORT amdsmi_status_t amdsmi_topo_get_link_type(amdsmi_processor_handle from, amdsmi_processor_handle to,
                                                 uint64_t *hops, amdsmi_link_type_t *type)
{
    RSMI_IO_LINK_TYPE link = RSMI_IOLINK_TYPE_UNDEFINED;
    amdsmi_status_t status = ASK(rsmi_topo_get_link_type, from, index_of(to), hops, &link);
    *type = link == RSMI_IOLINK_TYPE_XGMI ? AMDSMI_LINK_TYPE_XGMI : AMDSMI_LINK_TYPE_PCIE;
    return status;
}

EXPORT amdsmi_status_t amdsmi_get_gpu_process_list(amdsmi_processor_handle handle, uint32_t *max_processes,
                                                   amdsmi_proc_info_t *list)
{
    struct fake_process processes[64];
    if (!max_processes || (*max_processes && !list))
        return AMDSMI_STATUS_INVAL;
    uint32_t capacity = *max_processes;
    ANSWER(handle, max_processes);
    *max_processes = processes_on(index_of(handle), card, processes, 64);
    for (uint32_t i = 0; i < *max_processes && i < capacity; i++) {
        list[i] =
            (amdsmi_proc_info_t){.pid = processes[i].pid, .mem = processes[i].memory_bytes, .cu_occupancy = UNKNOWN};
        list[i].memory_usage.vram_mem = processes[i].memory_bytes;
    }
    return capacity > 0 && capacity < *max_processes ? AMDSMI_STATUS_OUT_OF_RESOURCES : AMDSMI_STATUS_SUCCESS;
}

/* The other names that the binding imports. They must exist; this library implements none of them. */
static amdsmi_status_t unsupported(void)
{
    return AMDSMI_STATUS_NOT_SUPPORTED;
}
#define UNSUPPORTED(name) EXPORT amdsmi_status_t name(void) __attribute__((alias("unsupported")));
#include "amd_smi_unsupported.def"
