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
    switch (ledger_reserve(region, (unsigned)device, bytes, limit)) {
    case LEDGER_GRANTED:
        return CUDA_SUCCESS;
    case LEDGER_OVER:
        log_line(LOG_INFO, "device %d: %llu bytes refused, the limit is %llu", device, (unsigned long long)bytes,
                 (unsigned long long)limit);
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_NOT_PERMITTED;
    }
}

void refund(int device, uint64_t bytes)
{
    if (device >= 0 && bytes > 0 && tenant_region() != NULL)
        ledger_release(tenant_region(), (unsigned)device, bytes);
}

static CUresult keep(CUresult answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *owner, void *link)
{
    if (!counted(device))
        return answer;
    if (answer != CUDA_SUCCESS) {
        refund(device, bytes);
        return answer;
    }
    struct entry entry = {.key = key, .kind = kind, .device = device, .bytes = bytes, .owner = owner,
                          .link = link}, previous;
    if (!table_put(&entry, &previous))
        log_line(LOG_ERROR, "no memory to remember an allocation: it stays charged"); /* never too little */
    else if (previous.kind != 0)
        refund(previous.device, previous.bytes); /* what was there is gone, or the driver would not reuse its name */
    return answer;
}

CUresult settle(CUresult answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *owner)
{
    return keep(answer, kind, key, device, bytes, owner, NULL);
}

/* Free `key`: forgotten before the driver is asked, for it may hand the name out again at once; remembered again if it
 * refuses. */
#define FREE(kind, key, call)                                                                                          \
    do {                                                                                                               \
        struct entry entry, previous;                                                                                  \
        bool ours = table_take(kind, (uint64_t)(uintptr_t)(key), &entry);                                              \
        CUresult answer = call;                                                                                        \
        if (ours && answer == CUDA_SUCCESS)                                                                            \
            refund(entry.device, entry.bytes);                                                                         \
        else if (ours)                                                                                                 \
            table_put(&entry, &previous);                                                                              \
        return answer;                                                                                                 \
    } while (0)

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
    return keep(answer, HELD_POINTER, answer == CUDA_SUCCESS ? *pointer : 0, device, bytes, context_current(), &spilled);
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
    return settle(answer, HELD_POINTER, answer == CUDA_SUCCESS ? *pointer : 0, device, bytes, context_current());
}

CUresult allocate_managed(CUresult (*real)(CUdeviceptr *, size_t, unsigned), CUdeviceptr *pointer, size_t bytes,
                          unsigned flags)
{
    int device = device_current();
    CUresult refused = charge(device, bytes);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult answer = real(pointer, bytes, flags);
    return settle(answer, HELD_POINTER, answer == CUDA_SUCCESS ? *pointer : 0, device, bytes, context_current());
}

CUresult allocate_pitch(CUresult (*real)(CUdeviceptr *, size_t *, size_t, size_t, unsigned), CUdeviceptr *pointer,
                        size_t *pitch, size_t width, size_t height, unsigned element)
{
    int device = device_current();
    uint64_t rounded = 0, expected = 0;
    if (__builtin_add_overflow(width, PITCH_STEP - 1, &rounded) ||
        __builtin_mul_overflow(rounded / PITCH_STEP * PITCH_STEP, height, &expected))
        expected = UINT64_MAX;
    CUresult refused = charge(device, expected);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult answer = real(pointer, pitch, width, height, element);
    uint64_t bytes = expected;
    if (spills(answer, device)) {
        *pitch = rounded / PITCH_STEP * PITCH_STEP;
        return settle_spill(pointer, device, bytes);
    }
    if (answer == CUDA_SUCCESS && counted(device)) {
        bytes = (uint64_t)*pitch * height;
        if (bytes > expected && charge(device, bytes - expected) != CUDA_SUCCESS) {
            refund(device, expected);
            REAL(cuMemFree_v2)(*pointer);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (bytes < expected)
            refund(device, expected - bytes);
    }
    return settle(answer, HELD_POINTER, answer == CUDA_SUCCESS ? *pointer : 0, device, bytes, context_current());
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

/* --------------------------------------------------------------------------------------------------------- arrays */

static uint64_t element_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    default: /* the 32-bit formats; the packed and compressed ones need no more */
        return 4;
    }
}

/* What an array of this shape holds with `levels` mipmap levels, each half as wide, high and deep as the one before.
 * Layers do not shrink. A shape too large for 64 bits is more than any limit. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (shape == NULL || shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0; /* mapped later, from memory that is charged when it is created */
    uint64_t total = 0;
    for (unsigned level = 0; level < levels && level < 64; level++) {
        uint64_t width = shape->Width >> level, height = shape->Height >> level, depth = shape->Depth;
        if (!(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
            depth >>= level;
        uint64_t bytes = element_bytes(shape->Format) * shape->NumChannels;
        if (__builtin_mul_overflow(bytes, width > 0 ? width : 1, &bytes) ||
            __builtin_mul_overflow(bytes, height > 0 ? height : 1, &bytes) ||
            __builtin_mul_overflow(bytes, depth > 0 ? depth : 1, &bytes) ||
            __builtin_add_overflow(total, bytes, &total))
            return UINT64_MAX;
    }
    return total;
}

#define CREATE_ARRAY(shape, levels, call)                                                                              \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        uint64_t bytes = array_bytes(shape, levels);                                                                   \
        CUresult refused = charge(device, bytes);                                                                      \
        if (refused != CUDA_SUCCESS)                                                                                   \
            return refused;                                                                                            \
        CUresult answer = call;                                                                                        \
        uint64_t key = answer == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*array : 0;                                       \
        return settle(answer, HELD_ARRAY, key, device, bytes, context_current());                                      \
    } while (0)

CUresult create_array(CUresult (*real)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *), CUarray *array,
                      const CUDA_ARRAY_DESCRIPTOR *shape)
{
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (shape != NULL)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width, .Height = shape->Height, .Format = shape->Format,
                                         .NumChannels = shape->NumChannels};
    CREATE_ARRAY(&flat, 1, real(array, shape));
}

CUresult create_array_3d(CUresult (*real)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *), CUarray *array,
                         const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CREATE_ARRAY(shape, 1, real(array, shape));
}

CUresult create_mipmap(CUresult (*real)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned),
                       CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    CREATE_ARRAY(shape, levels, real(array, shape, levels));
}

CUresult destroy_array(CUresult (*real)(CUarray), CUarray array)
{
    FREE(HELD_ARRAY, array, real(array));
}

CUresult destroy_mipmap(CUresult (*real)(CUmipmappedArray), CUmipmappedArray array)
{
    FREE(HELD_ARRAY, array, real(array));
}
