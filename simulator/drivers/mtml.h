/* MTML's ABI as this project meets it: our own declarations of what libmtml.so exports. The public reference is
 * mtml_2.2.0.h (MooreThreads/mthreads-ml-py). Everything is reached through opaque handles, the library's own first.
 */
#ifndef HETERO_FAKE_MTML_H
#define HETERO_FAKE_MTML_H

typedef enum {
    MTML_SUCCESS = 0,
    MTML_ERROR_DRIVER_NOT_LOADED = 1,
    MTML_ERROR_DRIVER_FAILURE = 2,
    MTML_ERROR_INVALID_ARGUMENT = 3,
    MTML_ERROR_NOT_SUPPORTED = 4,
    MTML_ERROR_NO_PERMISSION = 5,
    MTML_ERROR_INSUFFICIENT_SIZE = 6,
    MTML_ERROR_NOT_FOUND = 7,
    MTML_ERROR_UNKNOWN = 999,
} MtmlReturn;

typedef struct MtmlLibrary MtmlLibrary;
typedef struct MtmlSystem MtmlSystem;
typedef struct MtmlDevice MtmlDevice;
typedef struct MtmlMemory MtmlMemory;
typedef struct MtmlGpu MtmlGpu;

typedef enum { MTML_BRAND_MTT = 0 } MtmlBrandType;
typedef enum { MTML_MTLINK_STATE_DOWN = 0, MTML_MTLINK_STATE_UP = 1 } MtmlMtLinkState;
typedef enum { MTML_DEVICE_MPC_DISABLE = 0 } MtmlMpcMode;
typedef enum { MTML_MEMORY_ECC_DISABLE = 0, MTML_MEMORY_ECC_ENABLE = 1 } MtmlEccMode;
typedef enum { MTML_MEMORY_ERROR_TYPE_CORRECTED = 0, MTML_MEMORY_ERROR_TYPE_UNCORRECTED = 1 } MtmlMemoryErrorType;
typedef enum { MTML_VOLATILE_ECC = 0, MTML_AGGREGATE_ECC = 1 } MtmlEccCounterType;
typedef enum { MTML_MEMORY_LOCATION_DRAM = 1 } MtmlMemoryLocation;
typedef enum { MTML_RETIRED_PAGES_PENDING_STATE_FALSE = 0, MTML_RETIRED_PAGES_PENDING_STATE_TRUE = 1 } MtmlPagesPending;
typedef enum {
    MTML_TOPOLOGY_INTERNAL,
    MTML_TOPOLOGY_SINGLE,
    MTML_TOPOLOGY_MULTIPLE,
    MTML_TOPOLOGY_HOSTBRIDGE,
    MTML_TOPOLOGY_NODE,
    MTML_TOPOLOGY_SYSTEM,
} MtmlDeviceTopologyLevel;

typedef struct {
    char sbdf[32]; /* 00000000:3a:00.0 */
    unsigned int segment, bus, device, pciDeviceId, pciSubsystemId, busWidth;
    float pciMaxSpeed, pciCurSpeed;
    unsigned int pciMaxWidth, pciCurWidth, pciMaxGen, pciCurGen;
    int rsvd[6];
} MtmlPciInfo;

typedef struct {
    unsigned int virtCap : 1, virtRole : 3, mpcCap : 1, mpcType : 3, mtLinkCap : 1, rsvd : 23;
    unsigned int rsvd2;
} MtmlDeviceProperty;

typedef struct {
    unsigned int version, bandWidth, linkNum, rsvd[4];
} MtmlMtLinkSpec;

/* As the compiler lays out the public header's own declarations. */
_Static_assert(sizeof(MtmlPciInfo) == 104 && sizeof(MtmlDeviceProperty) == 8 && sizeof(MtmlMtLinkSpec) == 28, "MTML");

#endif
