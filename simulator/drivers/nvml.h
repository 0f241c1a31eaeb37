/* What the parts of the fake NVML share: the rack, what a handle stands for, and how a call begins. */
#ifndef HETERO_FAKE_NVML_H
#define HETERO_FAKE_NVML_H

#include "nvml/abi.h"
#include "nvidia.h"
#include "management_fake.h"

#include <stdio.h>
#include <string.h>

/* What clients ask besides what the limiter's abi.h declares, after NVIDIA's nvml.h. */

/* Of what nvmlDeviceGetPciInfo and its _v2 fill: nvmlPciInfo_t before its last 16 bytes. */
#define NVML_PCI_INFO_V2_SIZE 52

typedef struct {
    unsigned version; /* nvmlTemperature_v1 */
    int sensorType, temperature;
} nvmlTemperature_v1_t;

#define nvmlTemperature_v1 NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1)

typedef nvmlDevice_t nvmlGpuInstance_t, nvmlComputeInstance_t; /* opaque */

typedef struct {
    unsigned start, size; /* slices */
} nvmlGpuInstancePlacement_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    unsigned version, id, sliceCount, instanceCount, multiprocessorCount;
    unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

#define nvmlGpuInstanceProfileInfo_v2     NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)
#define nvmlComputeInstanceProfileInfo_v2 NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2)

/* As the ctypes of NVIDIA's own binding lay them out. */
_Static_assert(nvmlGpuInstanceProfileInfo_v2 == 0x02000098, "GPU instance profile");
_Static_assert(nvmlComputeInstanceProfileInfo_v2 == 0x02000088, "compute instance profile");
_Static_assert(nvmlTemperature_v1 == 0x0100000c, "temperature");

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

struct nvmlDevice_st { /* a device, or one of its MIG instances */
    unsigned device;
    int instance; /* -1: the device itself */
};

/* Each library's own: whether a card in this state fell off the bus, for which NVML has no milder word. */
bool nvml_lost(const char *health);

/* nvml.c: NULL until the library is initialised; then, like the handles, read only. */
extern struct nvidia *rack;
extern struct nvmlDevice_st device_handles[ENGINE_CARDS],
    instance_handles[ENGINE_CARDS]; /* instance_handles: by card */
bool nvml_started(void);
bool valid(nvmlDevice_t handle);
const struct nvidia_card *card_of(nvmlDevice_t handle);
void pci_of(const struct nvidia_device *device, nvmlPciInfo_t *pci);

/* For faults: the card that a call is about and the output that it fills in. By default no card and no output. */
static const struct fake_card *const called_card __attribute__((unused)) = NULL;
static void *const noise __attribute__((unused)) = NULL;
static const uint64_t noise_size __attribute__((unused)) = 0;
#define FILLS_TEXT(pointer, size)                                                                                      \
    void *const noise = (pointer);                                                                                     \
    const uint64_t noise_size = (size)
#define FILLS(pointer) FILLS_TEXT(pointer, sizeof *(pointer))

#define STARTED                                                                                                        \
    FAULTS(called_card, noise, noise_size);                                                                            \
    if (!nvml_started())                                                                                               \
    return NVML_ERROR_UNINITIALIZED
#define NEEDS(condition)                                                                                               \
    if (!(condition))                                                                                                  \
    return NVML_ERROR_INVALID_ARGUMENT

/* What NVML keeps in memory answers even for a card that fell off the bus; what it has to ask the card does not. */
#define KNOWN(name, handle)                                                                                            \
    const struct fake_card *const called_card = nvml_started() && valid(handle) ? fake_at((handle)->device) : NULL;    \
    STARTED;                                                                                                           \
    NEEDS(valid(handle));                                                                                              \
    if (!faults_spare(called_card))                                                                                    \
        return NVML_ERROR_GPU_IS_LOST;                                                                                 \
    const struct nvidia_device *name = &rack->devices[(handle)->device]
#define ALIVE(name, handle)                                                                                            \
    KNOWN(name, handle);                                                                                               \
    if (nvml_lost(name->health))                                                                                       \
    return NVML_ERROR_GPU_IS_LOST
#define WHOLE(handle)                                                                                                  \
    if ((handle)->instance >= 0)                                                                                       \
    return NVML_ERROR_NOT_SUPPORTED

#endif
