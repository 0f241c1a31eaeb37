/* Which of the grant's devices a call means. Ordinals move with CUDA_VISIBLE_DEVICES, so only UUIDs decide. */
#include "device.h"

#include "driver.h"
#include "held.h"

#include <string.h>

#define ORDINALS 64

enum { NOT_ASKED = 0 };

/* Per ordinal: the grant's device + 3, or NOT_ASKED; `only`: the same of the device that every call means, of
 * DEVICE_NONE when there are several. Constant once asked: the driver fixes both at its first cuInit, so every
 * thread writes the same. */
static _Atomic int8_t known[ORDINALS];
static _Atomic int8_t only;

static int ask(CUdevice device)
{
    CUuuid uuid;
    typeof(&cuDeviceGetUuid_v2) get = REAL(cuDeviceGetUuid_v2);
    if (get == NULL)
        get = REAL(cuDeviceGetUuid); /* before 11.4: of the whole card, where _v2 names its MIG instance */
    if (get == NULL || get(&uuid, device) != CUDA_SUCCESS)
        return DEVICE_NONE;
    return tenant_device((const uint8_t *)uuid.bytes);
}

int device_of(CUdevice device)
{
    if (tenancy() != TENANCY_HELD || device < 0 || device >= ORDINALS)
        return tenancy() == TENANCY_HELD ? DEVICE_NONE : DEVICE_FOREIGN;
    int seen = atomic_load_explicit(&known[device], memory_order_relaxed);
    if (seen != NOT_ASKED)
        return seen - 3;
    int found = ask(device);
    if (found != DEVICE_NONE)
        atomic_store_explicit(&known[device], (int8_t)(found + 3), memory_order_relaxed);
    return found;
}

CUdevice ordinal_of(int device)
{
    CUdevice ordinal = 0;
    while (ordinal < ORDINALS - 1 && atomic_load_explicit(&known[ordinal], memory_order_relaxed) != device + 3)
        ordinal++;
    return ordinal;
}

uint64_t threads_of(int device)
{
    int processors = 0, threads = 0;
    REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal_of(device));
    REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal_of(device));
    return (uint64_t)processors * (uint64_t)threads;
}

/* With one device there is nothing to ask. */
int device_only(void)
{
    int seen = atomic_load_explicit(&only, memory_order_relaxed), count;
    if (__builtin_expect(seen != NOT_ASKED, 1))
        return seen - 3;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return DEVICE_NONE;
    int found = count == 1 ? device_of(0) : DEVICE_NONE;
    if (count != 1 || found != DEVICE_NONE)
        atomic_store_explicit(&only, (int8_t)(found + 3), memory_order_relaxed);
    return found;
}

bool devices_all_ours(void)
{
    int count = 0;
    bool ours = REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && count > 0;
    for (CUdevice device = 0; ours && device < count; device++)
        ours = device_of(device) >= 0;
    return ours;
}

CUcontext context_current(void)
{
    CUcontext context = NULL;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

int device_current(void)
{
    CUdevice device;
    if (tenancy() == TENANCY_REFUSED)
        return DEVICE_FOREIGN;
    return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device_of(device) : DEVICE_NONE;
}

int device_of_stream(CUstream stream)
{
    int device = device_only();
    if (device != DEVICE_NONE)
        return device;
    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return device_current();
    struct entry entry, previous;
    if (table_get(STREAM_DEVICE, (uintptr_t)stream, &entry))
        return entry.device;
    CUcontext context;
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return device_current();
    entry =
        (struct entry){.key = (uintptr_t)stream, .kind = STREAM_DEVICE, .device = device_current(), .owner = context};
    REAL(cuCtxPopCurrent_v2)(&context);
    table_put(&entry, &previous);
    return entry.device;
}

void device_after_fork(void)
{
    /* The child may initialise the driver anew, under another CUDA_VISIBLE_DEVICES. */
    memset((void *)known, 0, sizeof known);
    atomic_store(&only, NOT_ASKED);
}
