/* DCMI's ABI as this project meets it: our own declarations of what libdcmi.so exports. The public reference is
 * dcmi_interface_api.h (Ascend/mind-cluster, component/ascend-common/devmanager/dcmi). Every call answers 0, or a
 * negative code. A card holds one device or more; (card_id, device_id) names one.
 */
#ifndef HETERO_FAKE_DCMI_H
#define HETERO_FAKE_DCMI_H

#include <stdint.h>

enum {
    DCMI_OK = 0,
    DCMI_ERR_CODE_INVALID_PARAMETER = -8001,
    DCMI_ERR_CODE_INNER_ERR = -8005, /* result of dcmi_init without a driver */
    DCMI_ERR_CODE_DEVICE_NOT_EXIST = -8008,
    DCMI_ERR_CODE_NOT_REDAY = -8012, /* spelt so */
    DCMI_ERR_CODE_RESOURCE_OCCUPIED = -8020,
    DCMI_ERR_CODE_NOT_SUPPORT = -8255,
};

enum dcmi_unit_type { NPU_TYPE = 0, MCU_TYPE = 1, CPU_TYPE = 2, INVALID_TYPE = 0xff };
enum dcmi_die_type { NDIE, VDIE };
enum dcmi_device_type { DCMI_DEVICE_TYPE_DDR, DCMI_DEVICE_TYPE_SRAM, DCMI_DEVICE_TYPE_HBM };
enum dcmi_main_cmd { DCMI_MAIN_CMD_VDEV_MNG = 52 };
enum { VDEV_RESOURCE = 0, VDEV_TOTAL = 1, VDEV_FREE = 2, VDEV_ACTIVITY = 5 }; /* sub-commands of VDEV_MNG */
enum { /* input of dcmi_get_device_utilization_rate */
       UTILIZATION_MEMORY = 1,
       UTILIZATION_AICORE = 2,
       UTILIZATION_HBM = 6,
};
enum dcmi_topology {
    DCMI_TOPO_TYPE_SELF = 0,
    DCMI_TOPO_TYPE_SYS = 1,
    DCMI_TOPO_TYPE_PHB = 2,
    DCMI_TOPO_TYPE_HCCS = 3,
    DCMI_TOPO_TYPE_PXB = 4,
    DCMI_TOPO_TYPE_PIX = 5,
    DCMI_TOPO_TYPE_SIO = 6, /* two dies of one module */
    DCMI_TOPO_TYPE_HCCS_SW = 7,
};

struct dcmi_chip_info_v2 {
    unsigned char chip_type[32], chip_name[32], chip_ver[32];
    unsigned int aicore_cnt;
    unsigned char npu_name[32];
};

struct dcmi_pcie_info_all {
    unsigned int venderid, subvenderid, deviceid, subdeviceid;
    int domain;
    unsigned int bdf_busid, bdf_deviceid, bdf_funcid;
    unsigned char reserve[32];
};

struct dcmi_die_id {
    unsigned int soc_die[5];
};

struct dcmi_multi_utilization_info { /* percent */
    unsigned int aic_util, aiv_util, aicore_util, npu_util, reserved[8];
};

struct dcmi_ecc_info {
    int enable_flag;
    unsigned int single_bit_error_cnt, double_bit_error_cnt;
    unsigned int total_single_bit_error_cnt, total_double_bit_error_cnt;
    unsigned int single_bit_isolated_pages_cnt, double_bit_isolated_pages_cnt;
    unsigned int single_bit_next_isolated_pages_cnt, double_bit_next_isolated_pages_cnt;
};

struct dcmi_hbm_info {
    unsigned long long memory_size; /* MB, as all below */
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};

struct dcmi_get_memory_info_stru {
    unsigned long long memory_size, memory_available;
    unsigned int freq;
    unsigned long hugepagesize, hugepages_total, hugepages_free; /* KB, pages, pages */
    unsigned int utiliza;
    unsigned char reserve[60];
};

struct dcmi_proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage; /* bytes */
};

struct dcmi_base_resource {
    unsigned long long token, token_max, task_timeout;
    unsigned int vfg_id;
    unsigned char vip_mode, reserved[31];
};

struct dcmi_computing_resource {
    float aic, aiv; /* cores */
    unsigned short dsa, rtsq, acsq, cdqm, c_core, ffts, sdma, pcie_dma;
    unsigned long long memory_size; /* MB */
    unsigned int event_id, notify_id, stream_id, model_id;
    unsigned short topic_schedule_aicpu, host_ctrl_cpu, host_aicpu, device_aicpu, topic_ctrl_cpu_slot;
    unsigned int vdev_aicore_utilization;
    unsigned long long vdev_memory_total, vdev_memory_free;
    unsigned char reserved[12];
};

struct dcmi_media_resource {
    float jpegd, jpege, vpc, vdec, pngd, venc;
    unsigned char reserved[32];
};

struct dcmi_create_vdev_res_stru {
    unsigned int vdev_id, vfg_id; /* 0xffffffff: the driver chooses */
    char template_name[32];
    unsigned char reserved[64];
};

struct dcmi_create_vdev_out {
    unsigned int vdev_id, pcie_bus, pcie_device, pcie_func, vfg_id;
    unsigned char reserved[32];
};

struct dcmi_vdev_query_info {
    char name[16];
    unsigned int status, is_container_used, vfid, vfg_id;
    unsigned long long container_id;
    struct dcmi_base_resource base;
    struct dcmi_computing_resource computing;
    struct dcmi_media_resource media;
};

struct dcmi_vdev_query_stru {
    unsigned int vdev_id;
    struct dcmi_vdev_query_info query_info;
};

struct dcmi_soc_free_resource {
    unsigned int vfg_num, vfg_bitmap;
    struct dcmi_base_resource base;
    struct dcmi_computing_resource computing;
    struct dcmi_media_resource media;
};

struct dcmi_soc_total_resource {
    unsigned int vdev_num, vdev_id[32], vfg_num, vfg_bitmap;
    struct dcmi_base_resource base;
    struct dcmi_computing_resource computing;
    struct dcmi_media_resource media;
};

/* As the compiler lays out the public header's own declarations. */
_Static_assert(sizeof(struct dcmi_chip_info_v2) == 132, "chip info");
_Static_assert(sizeof(struct dcmi_pcie_info_all) == 64 && sizeof(struct dcmi_die_id) == 20, "identity");
_Static_assert(sizeof(struct dcmi_get_memory_info_stru) == 112 && sizeof(struct dcmi_hbm_info) == 32, "memory");
_Static_assert(sizeof(struct dcmi_proc_mem_info) == 16, "process");
_Static_assert(sizeof(struct dcmi_create_vdev_res_stru) == 104 && sizeof(struct dcmi_create_vdev_out) == 52, "vNPU");
_Static_assert(sizeof(struct dcmi_vdev_query_stru) == 264, "vNPU query");
_Static_assert(sizeof(struct dcmi_soc_free_resource) == 224, "free resource");
_Static_assert(sizeof(struct dcmi_soc_total_resource) == 360, "total resource");

#endif
