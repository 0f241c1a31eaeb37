/* ROCm SMI's ABI as this project meets it: our own declarations of what Hygon's librocm_smi64.so exports. The public
 * reference is rocm_smi.h (Project-HAMi/dcu-dcgm, pkg/dcgm/include). Devices are addressed by index.
 */
#ifndef HETERO_FAKE_ROCM_SMI_H
#define HETERO_FAKE_ROCM_SMI_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    RSMI_STATUS_SUCCESS = 0,
    RSMI_STATUS_INVALID_ARGS = 1, /* a device that is not there, too */
    RSMI_STATUS_NOT_SUPPORTED = 2,
    RSMI_STATUS_INIT_ERROR = 8,
    RSMI_STATUS_NOT_FOUND = 10,
    RSMI_STATUS_INSUFFICIENT_SIZE = 11,
} rsmi_status_t;

typedef enum { RSMI_IOLINK_TYPE_UNDEFINED, RSMI_IOLINK_TYPE_PCIEXPRESS, RSMI_IOLINK_TYPE_XGMI } RSMI_IO_LINK_TYPE;
typedef enum { RSMI_MEM_TYPE_VRAM, RSMI_MEM_TYPE_VIS_VRAM, RSMI_MEM_TYPE_GTT } rsmi_memory_type_t;
typedef uint64_t rsmi_gpu_block_t; /* one bit each; memory's is 1 */
typedef enum { RSMI_SW_COMP_DRIVER } rsmi_sw_component_t;
typedef enum { RSMI_TEMP_TYPE_EDGE } rsmi_temperature_type_t;
typedef enum { RSMI_TEMP_CURRENT } rsmi_temperature_metric_t;

typedef struct {
    uint32_t process_id, pasid;
    uint64_t vram_usage, sdma_usage; /* bytes, microseconds */
    uint32_t cu_occupancy;
} rsmi_process_info_t;

typedef struct {
    uint64_t correctable_err, uncorrectable_err;
} rsmi_error_count_t;

/* As the compiler lays out the public header's own declarations. */
_Static_assert(sizeof(rsmi_process_info_t) == 32 && sizeof(rsmi_error_count_t) == 16, "ROCm SMI");

#endif
