/* MXSML's ABI as this project meets it: our own declarations of what libmxsml.so exports. The public reference is
 * MetaX's MxSml.h (gpustack/gpustack-operator, binding/mxsml). Devices and their slices (sGPUs) are addressed by
 * number; the counts are returned, all else answers a code.
 */
#ifndef HETERO_FAKE_MXSML_H
#define HETERO_FAKE_MXSML_H

typedef enum {
    MXSML_Success = 0,
    MXSML_Failure = 1,
    MXSML_NoDevice = 2,
    MXSML_OperationNotSupport = 3,
    MXSML_SysfsWriteError = 5, /* what the kernel driver refuses: too much, not a multiple of 128 MB, in use */
    MXSML_InvalidDeviceId = 6,
    MXSML_InvalidInput = 9,
    MXSML_InsufficientSize = 10,
    MXSML_LoadDllFailure = 26,
} mxSmlReturn_t;

typedef enum { MXSML_Brand_C = 2 } mxSmlDeviceBrand_t;
typedef enum { MXSML_Virtualization_Mode_None = 0 } mxSmlDeviceVirtualizationMode_t;
typedef enum { MXSML_Version_Bios, MXSML_Version_Driver } mxSmlVersionUnit_t;
typedef enum { MXSML_Usage_Xcore = 4 } mxSmlUsageIp_t;
typedef enum { MXSML_Temperature_Hotspot } mxSmlTemperatureSensors_t;
typedef enum { BEST_EFFORT, FIXED_SHARE, BURST_SHARE } mxSmlSchedClass_t;
typedef enum {
    MXSML_TOPOLOGY_INTERNAL,
    MXSML_TOPOLOGY_SINGLE,
    MXSML_TOPOLOGY_MULTIPLE,
    MXSML_TOPOLOGY_HOSTBRIDGE,
    MXSML_TOPOLOGY_NODE,
    MXSML_TOPOLOGY_METAXLINK,
    MXSML_TOPOLOGY_SYSTEM,
} mxSmlGpuTopologyLevel_t;

typedef struct {
    unsigned int deviceId;
    int type; /* no longer used */
    char bdfId[32];
    unsigned int gpuId, nodeId;
    char uuid[96];
    mxSmlDeviceBrand_t brand;
    mxSmlDeviceVirtualizationMode_t mode;
    char deviceName[32];
} mxSmlDeviceInfo_t;

typedef struct { /* KiB */
    long visVramTotal, visVramUse, vramTotal, vramUse, xttTotal, xttUse;
} mxSmlMemoryInfo_t;

typedef struct { /* mV, mA, mW */
    unsigned int voltage, current, power;
} mxSmlBoardWayElectricInfo_t;

typedef struct {
    char bdfId[32];
    unsigned int gpuId;
    unsigned long gpuMemoryUsage; /* bytes */
} mxSmlProcessGpuInfo_t;

typedef struct {
    unsigned int processId;
    char processName[64];
    unsigned int gpuNumber;
    mxSmlProcessGpuInfo_t processGpuInfo[64];
} mxSmlProcessInfo_t;

typedef struct {
    int unavailableCode;
    char unavailableReason[64];
} mxSmlDeviceUnavailableReasonInfo_t;

typedef struct {
    unsigned int sramCE, sramUE, dramCE, dramUE, retiredPage;
} mxSmlEccErrorCount_t;

typedef struct {
    unsigned int parentDeviceId, sgpuId;
    unsigned int vramQuota; /* MB */
    unsigned int swQueuePriority;
    unsigned int computeQuota; /* percent */
    unsigned int minor, deviceQueuePriority;
    char uuid[96];
} mxSmlSgpuInfo_t;

typedef struct {
    unsigned int totalVramQuota, vramQuota, computeQuota; /* all and free, in MB; free percent */
} mxSmlSgpuAvailableQuota_t;

typedef struct { /* bytes */
    long total, used, free;
} mxSmlSgpuMemoryInfo_t;

/* As the compiler lays out the public header's own declarations. */
_Static_assert(sizeof(mxSmlDeviceInfo_t) == 184 && sizeof(mxSmlMemoryInfo_t) == 48, "device");
_Static_assert(sizeof(mxSmlProcessInfo_t) == 3144, "process");
_Static_assert(sizeof(mxSmlDeviceUnavailableReasonInfo_t) == 68 && sizeof(mxSmlEccErrorCount_t) == 20, "health");
_Static_assert(sizeof(mxSmlSgpuInfo_t) == 124 && sizeof(mxSmlSgpuAvailableQuota_t) == 12, "sGPU");

#endif
