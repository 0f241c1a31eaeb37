/* The nodes that AMD's runtimes query. Node 0 is the processor, the others are the rack's cards. */
#include "kfd.h"

#include "amd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct kfd kfd = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define SIMDS_PER_UNIT 4u

static void in_child(void)
{
    if (kfd.rack)
        engine_forget(kfd.rack->engine);
    kfd.rack = NULL;
    pthread_mutex_init(&kfd.lock, NULL);
}

EXPORT HSAKMT_STATUS hsaKmtOpenKFD(void)
{
    LOCKED;
    if (kfd.rack)
        return OK;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&kfd.changed, &attributes);
    kfd.rack = nvidia_open();
    if (!kfd.rack || !kfd.rack->device_count)
        return HSAKMT_STATUS_KERNEL_IO_CHANNEL_NOT_OPENED;
    driver_open();
    pthread_atfork(NULL, NULL, in_child);
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtCloseKFD(void)
{
    return OK;
}

const struct nvidia_device *card_of(uint32_t node)
{
    return node != NODE_CPU && kfd.rack && node <= kfd.rack->device_count ? &kfd.rack->devices[node - 1] : NULL;
}

struct account *account_of(uint32_t node)
{
    if (!kfd.accounts[node - 1])
        kfd.accounts[node - 1] = engine_join(kfd.rack->engine, kfd.rack->devices[node - 1].first_card);
    return kfd.accounts[node - 1];
}

/* 1.6: below 1.4 the runtime refuses gfx906, and with 1.0 it does without interrupts. */
EXPORT HSAKMT_STATUS hsaKmtGetVersion(HsaVersionInfo *version)
{
    *version = (HsaVersionInfo){1, 6};
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtAcquireSystemProperties(HsaSystemProperties *properties)
{
    *properties = (HsaSystemProperties){.NumNodes = 1 + kfd.rack->device_count};
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtReleaseSystemProperties(void)
{
    return OK;
}

static void describe_processor(HsaNodeProperties *properties)
{
    properties->NumIOLinks = kfd.rack->device_count;
    properties->NumCPUCores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    properties->NumMemoryBanks = 1;
    properties->NumCaches = 2; /* the runtime asserts that there is one */
    strcpy((char *)properties->AMDName, "CPU");
}

/* Compute units, waves and engines as a Radeon Instinct MI60 (gfx906) has them. */
static void describe_units(const struct nvidia_device *card, HsaNodeProperties *properties)
{
    properties->NumFComputeCores = card->multiprocessors * SIMDS_PER_UNIT;
    properties->NumSIMDPerCU = SIMDS_PER_UNIT;
    properties->MaxWavesPerSIMD = 10;
    properties->LDSSizeInKB = 64;
    properties->WaveFrontSize = 64;
    properties->NumShaderBanks = 4;
    properties->NumArrays = 1;
    properties->NumCUPerArray = card->multiprocessors / 4;
    properties->MaxSlotsScratchCU = 32;
    properties->NumSdmaEngines = properties->NumSdmaQueuesPerEngine = 2;
    properties->NumCpQueues = 24;
    properties->NumGws = 64; /* cooperative launches need one */
    properties->VGPRSizePerCU = 256 << 10;
    properties->SGPRSizePerCU = 12800;
}

static void describe_card(const struct nvidia_device *card, uint32_t node, HsaNodeProperties *properties)
{
    describe_units(card, properties);
    properties->NumIOLinks = 1;
    properties->NumMemoryBanks = 4;
    properties->NumCaches = 2;
    properties->FComputeIdLo = UINT32_C(0x80000000);
    properties->EngineId = ENGINE_ID((unsigned)card->major, (unsigned)card->minor, 6, 460);
    properties->Capability = CAPABILITY_DOORBELL_TYPE(2) | CAPABILITY_SRAM_EDC | CAPABILITY_QUEUE_SIZE_POWER_OF_TWO;
    properties->uCodeEngineVersions = 145;
    properties->VendorId = 0x1002;
    properties->DeviceId = 0x66a1;
    properties->Domain = card->pci_domain;
    properties->LocationId = card->pci_bus << 8 | card->pci_device << 3;
    properties->LocalMemSize = card->memory_bytes;
    properties->MaxEngineClockMhzFCompute = 1700;
    properties->DrmRenderMinor = 127 + (int)node;
    properties->UniqueID = amd_unique_id(card);
    for (unsigned i = 0; i < 63 && card->model[i]; i++)
        properties->MarketingName[i] = (uint8_t)card->model[i];
    snprintf((char *)properties->AMDName, sizeof properties->AMDName, "gfx%d%d6", card->major, card->minor);
}

EXPORT HSAKMT_STATUS hsaKmtGetNodeProperties(uint32_t node, HsaNodeProperties *properties)
{
    const struct nvidia_device *card = card_of(node);
    memset(properties, 0, sizeof *properties);
    if (card)
        describe_card(card, node, properties);
    else if (node == NODE_CPU)
        describe_processor(properties);
    return card || node == NODE_CPU ? OK : HSAKMT_STATUS_INVALID_NODE_UNIT;
}

/* The bases of local and scratch memory are unused addresses: the runtime only compares with them. */
EXPORT HSAKMT_STATUS hsaKmtGetNodeMemoryProperties(uint32_t node, uint32_t count, HsaMemoryProperties *properties)
{
    static uint32_t flush_registers[1024]; /* registers that the runtime writes to */
    const struct nvidia_device *card = card_of(node);
    HsaMemoryProperties processor_memory[1] = {{.HeapType = HSA_HEAPTYPE_SYSTEM, .SizeInBytes = UINT64_C(64) << 30}};
    HsaMemoryProperties card_memory[4] = {
        {.HeapType = HSA_HEAPTYPE_FRAME_BUFFER_PRIVATE, .SizeInBytes = card ? card->memory_bytes : 0, .Width = 4096},
        {.HeapType = HSA_HEAPTYPE_GPU_LDS, .SizeInBytes = 64 << 10, .VirtualBaseAddress = UINT64_C(1) << 48},
        {.HeapType = HSA_HEAPTYPE_GPU_SCRATCH,
         .SizeInBytes = UINT64_C(4) << 30,
         .VirtualBaseAddress = UINT64_C(2) << 48},
        {.HeapType = HSA_HEAPTYPE_MMIO_REMAP,
         .SizeInBytes = sizeof flush_registers,
         .VirtualBaseAddress = (uintptr_t)flush_registers}};
    for (uint32_t i = 0; i < count && i < (card ? 4u : 1u); i++)
        properties[i] = card ? card_memory[i] : processor_memory[i];
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtGetNodeCacheProperties(uint32_t node UNUSED, uint32_t processor UNUSED, uint32_t count,
                                                  HsaCacheProperties *properties)
{
    memset(properties, 0, count * sizeof *properties);
    for (uint32_t i = 0; i < count; i++) {
        properties[i].CacheLevel = i + 1;
        properties[i].CacheSize = i ? 8192 : 16; /* KiB */
        properties[i].CacheLineSize = 64;
        properties[i].CacheType = CACHE_TYPE_DATA | CACHE_TYPE_CPU | CACHE_TYPE_HSACU;
    }
    return OK;
}

/* Without a link between a card and the processor the runtime assumes that there are no atomic operations. */
EXPORT HSAKMT_STATUS hsaKmtGetNodeIoLinkProperties(uint32_t node, uint32_t count, HsaIoLinkProperties *properties)
{
    memset(properties, 0, count * sizeof *properties);
    for (uint32_t i = 0; i < count; i++) {
        properties[i].IoLinkType = HSA_IOLINKTYPE_PCIEXPRESS;
        properties[i].NodeFrom = node;
        properties[i].NodeTo = node == NODE_CPU ? i + 1 : NODE_CPU;
        properties[i].Weight = 20;
    }
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtGetClockCounters(uint32_t node UNUSED, HsaClockCounters *counters)
{
    uint64_t now_ns = engine_now();
    *counters = (HsaClockCounters){now_ns, now_ns, now_ns, 1000000000};
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtGetTileConfig(uint32_t node UNUSED, HsaGpuTileConfig *config)
{
    config->NumTileConfigs = config->NumMacroTileConfigs = config->NumBanks = config->NumRanks = 0;
    config->GbAddrConfig = 0x26013041; /* of gfx906 */
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtGetXNACKMode(int32_t *enabled)
{
    *enabled = 0;
    return OK;
}

/* Features that these cards lack: page faults on request, shared virtual memory, a debugger. */
EXPORT HSAKMT_STATUS hsaKmtSetXNACKMode(int32_t enable UNUSED)
{
    return HSAKMT_STATUS_NOT_SUPPORTED;
}

EXPORT HSAKMT_STATUS hsaKmtSVMGetAttr(void *start UNUSED, uint64_t size UNUSED, unsigned count UNUSED,
                                      void *attributes UNUSED)
{
    return HSAKMT_STATUS_NOT_SUPPORTED;
}

EXPORT HSAKMT_STATUS hsaKmtSVMSetAttr(void *start UNUSED, uint64_t size UNUSED, unsigned count UNUSED,
                                      void *attributes UNUSED)
{
    return HSAKMT_STATUS_NOT_SUPPORTED;
}

EXPORT HSAKMT_STATUS hsaKmtRuntimeEnable(void *debugger UNUSED, bool setup UNUSED)
{
    return HSAKMT_STATUS_NOT_SUPPORTED;
}

EXPORT HSAKMT_STATUS hsaKmtRuntimeDisable(void)
{
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtRegisterGraphicsHandleToNodes(uint64_t handle UNUSED, void *info UNUSED,
                                                         uint64_t count UNUSED, uint32_t *nodes UNUSED)
{
    return HSAKMT_STATUS_NOT_SUPPORTED;
}

/* Calls without an effect here. */
EXPORT HSAKMT_STATUS hsaKmtSetMemoryPolicy(uint32_t node UNUSED, uint32_t default_policy UNUSED,
                                           uint32_t alternate_policy UNUSED, void *start UNUSED, uint64_t size UNUSED)
{
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtSetTrapHandler(uint32_t node UNUSED, void *handler UNUSED, uint64_t size UNUSED,
                                          void *buffer UNUSED, uint64_t buffer_size UNUSED)
{
    return OK;
}
