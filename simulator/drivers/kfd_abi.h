/* The ABI of libhsakmt.so.1, the library between AMD's HSA runtime and its kernel driver, and of what the runtime
 * writes into queues: our own declarations. The public references are ROCm's hsakmttypes.h, hsa.h, amd_hsa_signal.h
 * and hsa_ven_amd_loader.h (5.2); SDMA's packets are those of the runtime's sdma_registers.h. tests/limiters
 * compares them with those headers where they are installed.
 */
#ifndef HETERO_FAKE_KFD_ABI_H
#define HETERO_FAKE_KFD_ABI_H

#include "hsa/kfd.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    HSAKMT_STATUS_SUCCESS = 0,
    HSAKMT_STATUS_ERROR = 1,
    HSAKMT_STATUS_INVALID_PARAMETER = 3,
    HSAKMT_STATUS_INVALID_HANDLE = 4,
    HSAKMT_STATUS_INVALID_NODE_UNIT = 5,
    HSAKMT_STATUS_NO_MEMORY = 6,
    HSAKMT_STATUS_NOT_SUPPORTED = 11,
    HSAKMT_STATUS_KERNEL_IO_CHANNEL_NOT_OPENED = 20,
    HSAKMT_STATUS_WAIT_TIMEOUT = 31,
    HSAKMT_STATUS_MEMORY_NOT_REGISTERED = 36,
} HSAKMT_STATUS;

/* All structures are packed to four bytes, as in the header. */
#pragma pack(push, 4)

typedef struct {
    uint32_t KernelInterfaceMajorVersion, KernelInterfaceMinorVersion;
} HsaVersionInfo;

typedef struct {
    uint32_t NumNodes, PlatformOem, PlatformId, PlatformRev;
} HsaSystemProperties;

/* Bits of HsaNodeProperties.Capability. */
#define CAPABILITY_QUEUE_SIZE_POWER_OF_TWO (UINT32_C(1) << 3)
#define CAPABILITY_DOORBELL_TYPE(type)     ((uint32_t)(type) << 12)
#define CAPABILITY_SRAM_EDC                (UINT32_C(1) << 26)

/* HsaNodeProperties.EngineId: gfx906 is 9, 0, 6. */
#define ENGINE_ID(major, minor, stepping, microcode)                                                                   \
    ((uint32_t)(microcode) | (uint32_t)(major) << 10 | (uint32_t)(minor) << 16 | (uint32_t)(stepping) << 24)

typedef struct {
    uint32_t NumCPUCores, NumFComputeCores, NumMemoryBanks, NumCaches, NumIOLinks;
    uint32_t CComputeIdLo, FComputeIdLo;
    uint32_t Capability;
    uint32_t MaxWavesPerSIMD, LDSSizeInKB, GDSSizeInKB, WaveFrontSize;
    uint32_t NumShaderBanks, NumArrays, NumCUPerArray, NumSIMDPerCU, MaxSlotsScratchCU;
    uint32_t EngineId;
    uint16_t VendorId, DeviceId;
    uint32_t LocationId;
    uint64_t LocalMemSize;
    uint32_t MaxEngineClockMhzFCompute, MaxEngineClockMhzCCompute;
    int32_t DrmRenderMinor;
    uint16_t MarketingName[64]; /* UTF-16 */
    uint8_t AMDName[64];
    uint32_t uCodeEngineVersions;
    uint64_t DebugProperties, HiveID;
    uint32_t NumSdmaEngines, NumSdmaXgmiEngines;
    uint8_t NumSdmaQueuesPerEngine, NumCpQueues, NumGws, Reserved2;
    uint32_t Domain;
    uint64_t UniqueID;
    uint32_t VGPRSizePerCU, SGPRSizePerCU;
    uint8_t Reserved[12];
} HsaNodeProperties;

typedef enum {
    HSA_HEAPTYPE_SYSTEM = 0,
    HSA_HEAPTYPE_FRAME_BUFFER_PRIVATE = 2,
    HSA_HEAPTYPE_GPU_LDS = 4,
    HSA_HEAPTYPE_GPU_SCRATCH = 5,
    HSA_HEAPTYPE_MMIO_REMAP = 7,
} HSA_HEAPTYPE;

typedef struct {
    uint32_t HeapType;
    uint64_t SizeInBytes;
    uint32_t Flags, Width, MemoryClockMax;
    uint64_t VirtualBaseAddress;
} HsaMemoryProperties;

#define CACHE_TYPE_DATA  (UINT32_C(1) << 0)
#define CACHE_TYPE_CPU   (UINT32_C(1) << 2)
#define CACHE_TYPE_HSACU (UINT32_C(1) << 3)

typedef struct {
    uint32_t ProcessorIdLow, CacheLevel, CacheSize, CacheLineSize, CacheLinesPerTag, CacheAssociativity, CacheLatency;
    uint32_t CacheType;
    uint32_t SiblingMap[256];
} HsaCacheProperties;

#define HSA_IOLINKTYPE_PCIEXPRESS 2

typedef struct {
    uint32_t IoLinkType, VersionMajor, VersionMinor, NodeFrom, NodeTo, Weight;
    uint32_t MinimumLatency, MaximumLatency, MinimumBandwidth, MaximumBandwidth, RecTransferSize, Flags;
} HsaIoLinkProperties;

/* Bits of HsaMemFlags. */
#define MEMORY_SCRATCH       (UINT32_C(1) << 9)
#define MEMORY_EXECUTABLE    (UINT32_C(1) << 12)
#define MEMORY_FIXED_ADDRESS (UINT32_C(1) << 15)

typedef struct {
    uint32_t Value;
} HsaMemFlags;
typedef HsaMemFlags HsaMemMapFlags;

typedef struct {
    uint32_t *TileConfig, *MacroTileConfig;
    uint32_t NumTileConfigs, NumMacroTileConfigs, GbAddrConfig, NumBanks, NumRanks, Reserved[7];
} HsaGpuTileConfig;

typedef enum {
    HSA_POINTER_ALLOCATED = 1,
    HSA_POINTER_REGISTERED_USER = 2,
    HSA_POINTER_REGISTERED_SHARED = 4,
} HSA_POINTER_TYPE;

typedef struct {
    uint32_t Type, Node;
    HsaMemFlags MemFlags;
    void *CPUAddress;
    uint64_t GPUAddress, SizeInBytes;
    uint32_t NRegisteredNodes, NMappedNodes;
    const uint32_t *RegisteredNodes, *MappedNodes;
    void *UserData;
} HsaPointerInfo;

typedef uint32_t HsaSharedMemoryHandle[8];

typedef enum {
    HSA_QUEUE_SDMA = 2,
    HSA_QUEUE_COMPUTE_AQL = 21,
} HSA_QUEUE_TYPE;

typedef struct {
    uint64_t QueueId;
    volatile uint64_t *Queue_DoorBell_aql, *Queue_write_ptr_aql, *Queue_read_ptr_aql;
    volatile int64_t *ErrorReason;
} HsaQueueResource;

typedef struct {
    void *UserData;
    uint64_t SyncVarSize;
} HsaSyncVar;

#define HSA_EVENTTYPE_SIGNAL 0

typedef struct {
    uint32_t EventType;
    HsaSyncVar SyncVar;
    uint32_t Fault;            /* of a union's other side, which is that much longer */
    uint64_t HWData1, HWData2; /* HWData2: the address of an event's mailbox */
    uint32_t HWData3;
} HsaEventData;

typedef struct {
    uint32_t EventType, NodeId;
    HsaSyncVar SyncVar;
} HsaEventDescriptor;

typedef struct {
    uint32_t EventId;
    HsaEventData EventData;
} HsaEvent;

typedef struct {
    uint64_t GPUClockCounter, CPUClockCounter, SystemClockCounter, SystemClockFrequencyHz;
} HsaClockCounters;

#pragma pack(pop)

/* What the runtime writes into compute queues: packets of 64 bytes. */
enum { PACKET_INVALID = 1, PACKET_KERNEL_DISPATCH = 2, PACKET_BARRIER_AND = 3, PACKET_BARRIER_OR = 5 };

typedef struct { /* amd_signal_t */
    int64_t kind;
    volatile int64_t value;
    uint64_t event_mailbox_ptr;
    uint32_t event_id, reserved1;
    uint64_t start_ts, end_ts;
} amd_signal_t;

typedef struct {
    uint16_t header, setup, workgroup_size[3], reserved0;
    uint32_t grid_size[3], private_segment_size, group_segment_size;
    uint64_t kernel_object;
    void *kernarg_address;
    uint64_t reserved2;
    amd_signal_t *completion_signal;
} hsa_kernel_dispatch_packet_t;

typedef struct {
    uint16_t header, reserved0;
    uint32_t reserved1;
    amd_signal_t *dep_signal[5];
    uint64_t reserved2;
    amd_signal_t *completion_signal;
} hsa_barrier_packet_t;

/* The part of a queue (amd_queue_t) that its packet processor uses, from read_dispatch_id to queue_inactive_signal.
 * The fields in between size the scratch of a kernel's threads; the signal's value is the reason why the queue
 * stopped. */
typedef struct {
    volatile uint64_t read_dispatch_id;
    uint32_t read_offset, compute_tmpring_size, scratch_resource_descriptor[4];
    uint64_t scratch_location, scratch_bytes;
    volatile uint32_t scratch_of_thread, queue_properties;
    uint32_t reserved3[2];
    amd_signal_t *queue_inactive_signal;
} amd_queue_tail_t;

#define QUEUE_USE_SCRATCH_ONCE (UINT32_C(1) << 4) /* of queue_properties */
enum { INACTIVE_NOT = 0, INACTIVE_SCRATCH_TOO_SMALL = 1, INACTIVE_SCRATCH_USED = 512 };

/* The loader extension of the HSA runtime, which knows the code objects in a card's memory. */
#define HSA_EXTENSION_AMD_LOADER 0x201

typedef struct {
    uint64_t agent, executable;
    uint32_t code_object_storage_type;
    const void *code_object_storage_base;
    uint64_t code_object_storage_size, code_object_storage_offset;
    const void *segment_base;
    uint64_t segment_size;
} hsa_ven_amd_loader_segment_descriptor_t;

typedef struct {
    int (*query_host_address)(const void *device_address, const void **host_address);
    int (*query_segment_descriptors)(hsa_ven_amd_loader_segment_descriptor_t *descriptors, uint64_t *count);
    int (*query_executable)(const void *device_address, uint64_t *executable);
} hsa_ven_amd_loader_1_00_pfn_t;

#endif
