/* AMD SMI's ABI as this project meets it: our own declarations of what libamd_smi.so of ROCm 7.0 exports. The public
 * reference is include/amd_smi/amdsmi.h (ROCm/amdsmi). Unlike in ROCm SMI, devices are addressed by handles.
 */
#ifndef HETERO_FAKE_AMD_SMI_H
#define HETERO_FAKE_AMD_SMI_H

#include <stdint.h>

typedef enum {
    AMDSMI_STATUS_SUCCESS = 0,
    AMDSMI_STATUS_INVAL = 1,
    AMDSMI_STATUS_NOT_SUPPORTED = 2,
    AMDSMI_STATUS_OUT_OF_RESOURCES = 15,
    AMDSMI_STATUS_INIT_ERROR = 18,
    AMDSMI_STATUS_NOT_FOUND = 31,
    AMDSMI_STATUS_NOT_INIT = 32,
    AMDSMI_STATUS_INSUFFICIENT_SIZE = 41,
} amdsmi_status_t;

typedef void *amdsmi_processor_handle;
typedef void *amdsmi_socket_handle;
typedef enum { AMDSMI_PROCESSOR_TYPE_AMD_GPU = 1 } processor_type_t;
typedef enum { AMDSMI_LINK_TYPE_PCIE = 1, AMDSMI_LINK_TYPE_XGMI = 2 } amdsmi_link_type_t;

typedef union {
    struct {
        uint64_t function_number : 3, device_number : 5, bus_number : 8, domain_number : 48;
    };
    uint64_t as_uint;
} amdsmi_bdf_t;

typedef struct {
    uint32_t major, minor, release;
    const char *build;
} amdsmi_version_t;

typedef struct {
    uint32_t drm_render, drm_card, hsa_id, hip_id; /* all bits set: unknown */
    char hip_uuid[256];
} amdsmi_enumeration_info_t;

typedef struct {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256]; /* hexadecimal */
    uint32_t oam_id, num_of_compute_units;
    uint64_t target_graphics_version; /* 0x942 for gfx942 */
    uint32_t subsystem_id, reserved[21];
} amdsmi_asic_info_t;

typedef struct {
    uint32_t vram_type;
    char vram_vendor[256];
    uint64_t vram_size; /* MiB */
    uint32_t vram_bit_width;
    uint64_t vram_max_bandwidth, reserved[37];
} amdsmi_vram_info_t;

typedef struct {
    uint32_t vram_total, vram_used; /* MiB */
    uint32_t reserved[2];
} amdsmi_vram_usage_t;

typedef struct {
    uint32_t gfx_activity, umc_activity, mm_activity; /* percent */
    uint32_t reserved[13];
} amdsmi_engine_usage_t;

typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power; /* W */
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit; /* W */
    uint64_t reserved[18];
} amdsmi_power_info_t;

typedef struct {
    uint64_t power_cap, default_power_cap; /* microwatts */
    uint64_t dpm_cap, min_power_cap, max_power_cap, reserved[3];
} amdsmi_power_cap_info_t;

typedef struct {
    char driver_version[256], driver_date[256], driver_name[256];
} amdsmi_driver_info_t;

typedef struct {
    uint64_t correctable_count, uncorrectable_count, deferred_count, reserved[5];
} amdsmi_error_count_t;

typedef struct {
    char model_number[256], product_serial[256], fru_id[256], product_name[256], manufacturer_name[256];
    uint64_t reserved[64];
} amdsmi_board_info_t;

typedef struct {
    char name[256];
    uint32_t pid;
    uint64_t mem; /* bytes */
    struct {
        uint64_t gfx, enc;
        uint32_t reserved[12];
    } engine_usage;
    struct {
        uint64_t gtt_mem, cpu_mem, vram_mem; /* bytes */
        uint32_t reserved[10];
    } memory_usage;
    char container_name[256];
    uint32_t cu_occupancy, reserved[11];
} amdsmi_proc_info_t;

/* As AMD's own binding for Python lays them out. */
_Static_assert(sizeof(amdsmi_bdf_t) == 8 && sizeof(amdsmi_version_t) == 24 &&
                   sizeof(amdsmi_enumeration_info_t) == 272 && sizeof(amdsmi_asic_info_t) == 896 &&
                   sizeof(amdsmi_vram_info_t) == 584 && sizeof(amdsmi_vram_usage_t) == 16 &&
                   sizeof(amdsmi_engine_usage_t) == 64 && sizeof(amdsmi_power_info_t) == 192 &&
                   sizeof(amdsmi_power_cap_info_t) == 64 && sizeof(amdsmi_driver_info_t) == 768 &&
                   sizeof(amdsmi_error_count_t) == 64 && sizeof(amdsmi_board_info_t) == 1792 &&
                   sizeof(amdsmi_proc_info_t) == 704,
               "AMD SMI");

#endif
