/* CNDev's ABI: declarations of what libcndev.so exports. The public reference is cndev.h (Cambricon/mlu-exporter,
 * pkg/cndev/include). The field `version` at the start of a struct is the layout that the caller was built for, 5 or
 * 6. A library that does not know the layout refuses the call. */
#ifndef HETERO_FAKE_CNDEV_H
#define HETERO_FAKE_CNDEV_H

#include <stdint.h>

typedef enum {
    CNDEV_SUCCESS = 0,
    CNDEV_ERROR_NO_DRIVER = 1,
    CNDEV_ERROR_UNSUPPORTED_API_VERSION = 3,
    CNDEV_ERROR_UNINITIALIZED = 4,
    CNDEV_ERROR_INVALID_ARGUMENT = 5,
    CNDEV_ERROR_INVALID_DEVICE_ID = 6,
    CNDEV_ERROR_INSUFFICIENT_SPACE = 9, /* of a buffer, or of a card */
    CNDEV_ERROR_NOT_SUPPORTED = 10,
    CNDEV_ERROR_NOT_FOUND = 14,
    CNDEV_ERROR_IN_USE = 15,
    CNDEV_ERROR_DUPLICATE = 16,
} cndevRet_t;

typedef int32_t cndevDevice_t, cndevMluInstance_t;
typedef enum { CNDEV_FEATURE_DISABLED = 0, CNDEV_FEATURE_ENABLED = 1 } cndevEnableStatusEnum_t;
typedef enum { CNDEV_HEALTH_STATE_DEVICE_IN_PROBLEM = 0, CNDEV_HEALTH_STATE_DEVICE_GOOD = 1 } cndevHealthStateEnum_t;
typedef enum { SELF, INTERNAL, SINGLE, MULTIPLE, HOST_BRIDGE, CPU, SYSTEM } cndevTopologyRelationshipEnum_t;

typedef struct {
    int32_t version;
    uint32_t number;
} cndevCardInfo_t;

typedef struct {
    int32_t version;
    uint8_t uuid[37]; /* without the MLU- its tools print before it */
    uint64_t ncsUUID64;
} cndevUUID_t;

typedef struct {
    int32_t version;
    uint64_t sn, motherBoardSn;
} cndevCardSN_t;

typedef struct { /* MB, but for globalMemory; no version */
    int64_t physicalMemoryTotal, physicalMemoryUsed, reservedMemory, virtualMemoryTotal, virtualMemoryUsed;
    uint64_t globalMemory, reserved[16];
} cndevMemoryInfoV2_t;

typedef struct {
    int32_t version;
    uint32_t mcuMajorVersion, mcuMinorVersion, mcuBuildVersion;
    uint32_t driverMajorVersion, driverMinorVersion, driverBuildVersion;
} cndevVersionInfo_t;

typedef struct { /* no version */
    uint32_t subsystemId, deviceId;
    uint16_t vendor, subsystemVendor;
    uint32_t domain, bus, device, function;
    uint16_t moduleId, slotId;
    uint32_t reserved[8];
} cndevPCIeInfoV2_t;

typedef struct {
    int32_t version, nodeId;
} cndevNUMANodeId_t;

typedef struct {
    int32_t version, health; /* 1: fine */
    cndevHealthStateEnum_t deviceState;
    int32_t driverState;
} cndevCardHealthState_t;

typedef struct {
    int32_t version, averageCoreUtilization, coreUtilization[80];
} cndevUtilizationInfo_t;

typedef struct { /* degrees Celsius */
    int32_t version, board, cluster[20], memoryDie[8], chip;
    int32_t airInlet, airOutlet, memory, videoInput, cpu, isp;
} cndevTemperatureInfo_t;

typedef struct { /* W; no version */
    int32_t usage, cap, machine, tdp, maxPower, reserved[16];
} cndevDevicePowerInfo_t;

typedef struct {
    int32_t version;
    uint32_t pid;
    uint64_t physicalMemoryUsed, virtualMemoryUsed; /* KiB */
} cndevProcessInfo_t;

typedef struct {
    int32_t version;
    cndevTopologyRelationshipEnum_t relation;
} cndevTopologyRelationship_t;

typedef struct {
    int32_t version;
    cndevEnableStatusEnum_t smluMode;
} cndevSMLUMode_t;

typedef struct {
    int32_t version;
    uint32_t mluQuota;   /* percent */
    uint64_t memorySize; /* bytes */
} cndevSMluSet_t;

typedef struct {
    int32_t version, count, profileId[128];
} cndevSMluProfileIdInfo_t;

typedef struct { /* of quota and memory, [0] is the most and [1] what is in use */
    int32_t version, profileId;
    char name[100];
    uint32_t totalCapacity, remainCapacity, mluQuota[2];
    uint64_t memorySize[2];
} cndevSMluProfileInfo_t;

typedef struct {
    int32_t version, profileId, instanceId;
    uint8_t uuid[37];
    int32_t domain, bus, device, function;
    char profileName[100], instanceName[100], devNodeName[100];
    uint32_t mluQuota[2];
    uint64_t memorySize[2];
    uint32_t reserved[128];
} cndevSMluInfo_t;

/* As the compiler lays out the public header's own declarations. */
_Static_assert(sizeof(cndevUUID_t) == 56 && sizeof(cndevCardSN_t) == 24, "identity");
_Static_assert(sizeof(cndevMemoryInfoV2_t) == 176 && sizeof(cndevVersionInfo_t) == 28, "memory and version");
_Static_assert(sizeof(cndevPCIeInfoV2_t) == 64, "place");
_Static_assert(sizeof(cndevCardHealthState_t) == 16 && sizeof(cndevUtilizationInfo_t) == 328, "state");
_Static_assert(sizeof(cndevTemperatureInfo_t) == 148 && sizeof(cndevDevicePowerInfo_t) == 84, "temperature and power");
_Static_assert(sizeof(cndevProcessInfo_t) == 24 && sizeof(cndevSMluSet_t) == 16, "process and quota");
_Static_assert(sizeof(cndevSMluProfileIdInfo_t) == 520 && sizeof(cndevSMluProfileInfo_t) == 144, "profiles");
_Static_assert(sizeof(cndevSMluInfo_t) == 904, "instance");

#endif
