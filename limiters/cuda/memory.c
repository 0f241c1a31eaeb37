/* Memory: every way to get device memory is charged before the driver is asked, and given back when it is freed. */
#include "shim.h"

#include "../core/log.h"

/* Rows of memory with a pitch start at multiples of this on every card so far; a driver that answers more is charged
 * what it answered. */
#define PITCH_STEP 512u

bool counted(int device)
{
    return device >= 0 && terms_policy(tenant_terms(device)) != HETERO_POLICY_OFF;
}

CUresult charge(int device, uint64_t bytes)
{
    if (tenancy() == TENANCY_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (device == DEVICE_FOREIGN)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!counted(device))
        return CUDA_SUCCESS;
    struct region *region = tenant_region();
    if (region == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    uint64_t limit = terms_memory(tenant_terms(device));
    if (pools_known() && (bytes > limit || ledger_used(region, (unsigned)device) > limit - bytes))
        pools_trim(device); /* what they keep of freed memory is better used than refused */
    enum ledger_answer answer = ledger_reserve(region, (unsigned)device, bytes, limit);
    if (answer == LEDGER_GRANTED)
        return CUDA_SUCCESS;
    log_line(LOG_INFO, "device %d: %llu bytes refused, the limit is %llu", device, (unsigned long long)bytes,
             (unsigned long long)limit);
    return answer == LEDGER_OVER ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_PERMITTED;
}

void refund(int device, uint64_t bytes)
{
    if (device >= 0 && bytes > 0 && tenant_region() != NULL)
        ledger_release(tenant_region(), (unsigned)device, bytes);
}

CUresult settle(CUresult answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link)
{
    if (!counted(device))
        return answer;
    if (answer != CUDA_SUCCESS) {
        refund(device, bytes);
        return answer;
    }
    struct entry entry = {.key = key, .kind = kind, .device = device, .bytes = bytes,
                          .owner = context_current(), .link = link}, previous;
    if (!table_put(&entry, &previous))
        log_line(LOG_ERROR, "no memory to remember an allocation: it stays charged"); /* never too little */
    else if (previous.kind != 0)
        refund(previous.device, previous.bytes); /* what was there is gone, or the driver would not reuse its name */
    return answer;
}

static CUresult settle_pointer(CUresult answer, const CUdeviceptr *pointer, int device, uint64_t bytes, void *link)
{
    return settle(answer, HELD_POINTER, answer == CUDA_SUCCESS ? *pointer : 0, device, bytes, link);
}

/* Marks the entries of memory that the host holds though it was asked of the device. */
static char spilled;

bool spills(CUresult answer, int device)
{
    return answer == CUDA_ERROR_OUT_OF_MEMORY && counted(device) &&
           (terms_flags(tenant_terms(device)) & HETERO_FLAG_SPILL) != 0;
}

/* After the driver refused `bytes`, which the grant allows: managed memory, which may exceed the card. */
static CUresult settle_spill(CUdeviceptr *pointer, int device, uint64_t bytes)
{
    CUresult answer = REAL(cuMemAllocManaged)(pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    return settle_pointer(answer, pointer, device, bytes, &spilled);
}

CUresult allocate_spilled(CUdeviceptr *pointer, int device, uint64_t bytes)
{
    CUresult refused = charge(device, bytes);
    return refused != CUDA_SUCCESS ? refused : settle_spill(pointer, device, bytes);
}

static bool lives_in(const struct entry *entry, const void *context)
{
    return entry->owner == context;
}

void refund_context(CUcontext context)
{
    struct entry entry;
    while (context != NULL && table_take_match(lives_in, context, &entry))
        if (entry.kind == HELD_POINTER || entry.kind == HELD_ARRAY)
            refund(entry.device, entry.bytes);
}

/* ------------------------------------------------------------------------------------------------- what there is */

CUresult memory_info(CUresult (*real)(size_t *, size_t *), size_t *free, size_t *total)
{
    CUresult answer = real(free, total);
    int device = device_current();
    if (answer != CUDA_SUCCESS || (device != DEVICE_FOREIGN && !counted(device)))
        return answer;
    uint64_t limit = 0, used = 0;
    if (device != DEVICE_FOREIGN && tenant_region() != NULL) {
        pools_settle(device);
        limit = terms_memory(tenant_terms(device));
        used = ledger_used(tenant_region(), (unsigned)device);
    }
    uint64_t left = used < limit ? limit - used : 0;
    bool beyond = device != DEVICE_FOREIGN && (terms_flags(tenant_terms(device)) & HETERO_FLAG_SPILL) != 0;
    if (free != NULL && (*free > left || beyond))
        *free = left;
    if (total != NULL)
        *total = limit;
    return answer;
}

CUresult total_memory(CUresult (*real)(size_t *, CUdevice), size_t *bytes, CUdevice device)
{
    CUresult answer = real(bytes, device);
    int ours = device_of(device);
    if (answer == CUDA_SUCCESS && (ours == DEVICE_FOREIGN || counted(ours)))
        *bytes = ours == DEVICE_FOREIGN ? 0 : terms_memory(tenant_terms(ours));
    return answer;
}

/* ------------------------------------------------------------------------------------------------------- pointers */

CUresult allocate(CUresult (*real)(CUdeviceptr *, size_t), CUdeviceptr *pointer, size_t bytes)
{
    int device = device_current();
    CUresult refused = charge(device, bytes);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult answer = real(pointer, bytes);
    if (spills(answer, device))
        return settle_spill(pointer, device, bytes);
    return settle_pointer(answer, pointer, device, bytes, NULL);
}

CUresult allocate_managed(CUresult (*real)(CUdeviceptr *, size_t, unsigned), CUdeviceptr *pointer, size_t bytes,
                          unsigned flags)
{
    int device = device_current();
    CUresult refused = charge(device, bytes);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult answer = real(pointer, bytes, flags);
    return settle_pointer(answer, pointer, device, bytes, NULL);
}

/* What was charged time slices out to be another size. False: that does not fit, and nothing is charged any more. */
static bool recharge(int device, uint64_t charged, uint64_t bytes)
{
    if (bytes < charged)
        refund(device, charged - bytes);
    if (bytes <= charged || charge(device, bytes - charged) == CUDA_SUCCESS)
        return true;
    refund(device, charged);
    return false;
}

/* What rows of memory with a pitch are expected to take; UINT64_MAX: more than can be said. */
static uint64_t pitched(size_t width, size_t height)
{
    uint64_t row, bytes;
    if (__builtin_add_overflow(width, PITCH_STEP - 1, &row) ||
        __builtin_mul_overflow(row / PITCH_STEP * PITCH_STEP, height, &bytes))
        return UINT64_MAX;
    return bytes;
}

CUresult allocate_pitch(CUresult (*real)(CUdeviceptr *, size_t *, size_t, size_t, unsigned), CUdeviceptr *pointer,
                        size_t *pitch, size_t width, size_t height, unsigned element)
{
    int device = device_current();
    uint64_t bytes = pitched(width, height);
    CUresult refused = charge(device, bytes);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult answer = real(pointer, pitch, width, height, element);
    if (spills(answer, device)) {
        *pitch = pitched(width, 1);
        return settle_spill(pointer, device, bytes);
    }
    if (answer == CUDA_SUCCESS && counted(device)) {
        if (!recharge(device, bytes, *pitch * height)) {
            REAL(cuMemFree_v2)(*pointer);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        bytes = *pitch * height;
    }
    return settle_pointer(answer, pointer, device, bytes, NULL);
}

CUresult release(CUresult (*real)(CUdeviceptr), CUdeviceptr pointer)
{
    struct entry pooled;
    if (table_take(HELD_POOLED, pointer, &pooled))
        return settle_freed(real(pointer), &pooled);
    FREE(HELD_POINTER, pointer, real(pointer));
}

CUresult release_async(CUresult (*real)(CUdeviceptr, CUstream), CUstream none, CUdeviceptr pointer, CUstream stream)
{
    struct entry known;
    if (stream_capturing(stream == NULL ? none : stream))
        return real(pointer, stream); /* freed when the graph is launched: charged until its name is used again */
    if (table_take(HELD_POOLED, pointer, &known))
        return settle_freed(real(pointer, stream), &known);
    if (table_get(HELD_POINTER, pointer, &known) && known.link == &spilled)
        return release(REAL(cuMemFree_v2), pointer); /* it never was of a pool; this waits for its last use */
    FREE(HELD_POINTER, pointer, real(pointer, stream));
}
