/* The fake NVML: the MIG instances of a card. Each GPU instance has one compute instance of the same size. */
#include "nvml.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(current && pending);
    if (device->major < 8) /* since Ampere */
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = device->is_mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count)
{
    ALIVE(device, handle);
    NEEDS(count);
    *count = device->is_mig ? 7 : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *instance)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(instance && index < 7);
    if (!device->is_mig || index >= device->card_count)
        return NVML_ERROR_NOT_FOUND;
    *instance = &instance_handles[device->first_card + index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *handle)
{
    KNOWN(device, instance);
    (void)device;
    NEEDS(handle && instance->instance >= 0);
    *handle = &device_handles[instance->device];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is)
{
    KNOWN(device, handle);
    (void)device;
    NEEDS(is);
    *is = handle->instance >= 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned *id)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(id && handle->instance >= 0);
    *id = (unsigned)handle->instance + 1; /* 0 is the whole card's */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned *id)
{
    ALIVE(device, handle);
    (void)device;
    NEEDS(id && handle->instance >= 0);
    *id = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    ALIVE(device, handle);
    NEEDS(attributes);
    if (handle->instance < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct nvidia_card *card = card_of(handle);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = device->multiprocessors / 8 * card->mig_slices,
        .sharedCopyEngineCount = card->mig_slices,
        .gpuInstanceSliceCount = card->mig_slices,
        .computeInstanceSliceCount = card->mig_slices,
        .memorySizeMB = card->memory_bytes >> 20,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(handle, attributes);
}

/* A handle of a GPU instance, or of its compute instance, is that of its device. */
#define INSTANCE(handle, out)                                                                                          \
    ALIVE(device, handle);                                                                                             \
    NEEDS((handle)->instance >= 0 && (out))

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *instance)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(instance);
    if (!device->is_mig || !id || id > device->card_count)
        return NVML_ERROR_NOT_FOUND;
    *instance = &instance_handles[device->first_card + id - 1];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned id,
                                                          nvmlComputeInstance_t *instance)
{
    INSTANCE(handle, instance);
    (void)device;
    *instance = handle;
    return id ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

/* The ids of profiles, as nvidia-smi prints them, by slices; NVML asks for them in another order. */
static const unsigned profile_ids[] = {[1] = 19, [2] = 14, [3] = 9, [4] = 5, [7] = 0};
static const unsigned profile_slices[] = {1, 2, 3, 4, 7};

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
    INSTANCE(handle, info);
    unsigned start = 0, slices = card_of(handle)->mig_slices;
    for (unsigned i = 0; i < (unsigned)handle->instance; i++)
        start += rack->cards[device->first_card + i].mig_slices;
    *info = (nvmlGpuInstanceInfo_t){
        &device_handles[handle->device], (unsigned)handle->instance + 1, profile_ids[slices], {start, slices}};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    INSTANCE(handle, info);
    (void)device;
    *info = (nvmlComputeInstanceInfo_t){.device = &device_handles[handle->device],
                                        .gpuInstance = handle,
                                        .placement = {0, card_of(handle)->mig_slices}};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned profile,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    ALIVE(device, handle);
    WHOLE(handle);
    NEEDS(info);
    if (info->version != nvmlGpuInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (unsigned i = 0; profile < sizeof profile_slices / sizeof *profile_slices && i < device->card_count; i++) {
        const struct nvidia_card *card = &rack->cards[device->first_card + i];
        if (device->is_mig && card->mig_slices == profile_slices[profile]) {
            info->id = profile_ids[card->mig_slices];
            info->sliceCount = card->mig_slices;
            info->multiprocessorCount = device->multiprocessors / 8 * card->mig_slices;
            info->memorySizeMB = card->memory_bytes >> 20;
            snprintf(info->name, sizeof info->name, "MIG %s", card->profile);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED; /* no instance of this profile is on the card */
}

/* All of the GPU instance, whose id is 0, is the only one. */
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned profile,
                                                                  unsigned engine,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info)
{
    INSTANCE(handle, info);
    if (info->version != nvmlComputeInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned slices = card_of(handle)->mig_slices;
    if (engine || profile >= sizeof profile_slices / sizeof *profile_slices || profile_slices[profile] != slices)
        return NVML_ERROR_NOT_SUPPORTED;
    info->id = 0;
    info->sliceCount = slices;
    info->instanceCount = 1;
    info->multiprocessorCount = device->multiprocessors / 8 * slices;
    return NVML_SUCCESS;
}
