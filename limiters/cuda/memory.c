/* Memory: what there is of it, and memory that is got by pointer. */
#include "blocks.h"
#include "bodies.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "pools.h"
#include "room.h"

#include "../core/ledger.h"

/* Rows of memory with a pitch start at multiples of this on every card so far; a driver that answers more is charged
 * what it answered. */
#define PITCH_STEP 512u

CUresult memory_info(CUresult (*real)(size_t *, size_t *), size_t *free, size_t *total)
{
    CUresult answer = real(free, total);
    int device = device_current();
    if (answer != CUDA_SUCCESS || (device != DEVICE_FOREIGN && !counted(device)))
        return answer;
    uint64_t limit = 0, used = 0;
    if (device != DEVICE_FOREIGN && tenant_region() != NULL) {
        room_settle();
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

/* --------------------------------------------------------------------------------------------------------- pointers */

CUresult allocate(CUresult (*real)(CUdeviceptr *, size_t), CUdeviceptr *pointer, size_t bytes)
{
    int device = device_current();
    uint64_t held = blocks_for(bytes), charged = blocks_charged(device, bytes, held);
    CUresult refused = charge(device, charged);
    if (refused != CUDA_SUCCESS)
        return settle_blocks(refused, NULL, DEVICE_NONE, held, charged);
    CUresult answer = real(pointer, bytes);
    if (held == 0)
        return spills(answer, device) ? allocate_spilled(pointer, device, bytes)
                                      : settle_piece(answer, pointer, device);
    if (spills(answer, device))
        return settle_spill(pointer, device, bytes, charged);
    return settle_blocks(answer, pointer, device, held, charged);
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

/* A pitch tells what was taken only afterwards. */
static CUresult settle_pitched(CUdeviceptr *pointer, int device, uint64_t charged, uint64_t bytes)
{
    uint64_t held = blocks_for(bytes);
    if (!counted(device))
        return CUDA_SUCCESS;
    if (!recharge(device, charged, held)) {
        REAL(cuMemFree_v2)(*pointer);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return held == 0 ? settle_piece(CUDA_SUCCESS, pointer, device)
                     : settle_pointer(CUDA_SUCCESS, pointer, device, held, NULL);
}

CUresult allocate_pitch(CUresult (*real)(CUdeviceptr *, size_t *, size_t, size_t, unsigned), CUdeviceptr *pointer,
                        size_t *pitch, size_t width, size_t height, unsigned element)
{
    int device = device_current();
    uint64_t bytes = pitched(width, height), held = blocks_for(bytes);
    CUresult refused = charge(device, held);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult answer = real(pointer, pitch, width, height, element);
    if (answer == CUDA_SUCCESS)
        return settle_pitched(pointer, device, held, *pitch * height);
    if (spills(answer, device)) {
        *pitch = pitched(width, 1);
        return held == 0 ? allocate_spilled(pointer, device, bytes) : settle_spill(pointer, device, bytes, held);
    }
    refund(device, counted(device) ? held : 0);
    return answer;
}

/* A pointer that others may have open was freed, or not. `before`: what was used of the card. */
static CUresult settle_shared(CUresult answer, const struct entry *entry, uint64_t before)
{
    struct entry previous;
    if (answer != CUDA_SUCCESS) {
        table_put(entry, &previous);
    } else if (card_got_back(entry->device, before, entry->bytes)) {
        give_back(entry);
        say_shared(entry->device, -(int64_t)entry->bytes);
    } else {
        stays_charged(entry->device, entry->bytes);
    }
    return answer;
}

/* Whether an entry that was taken is of a pointer that others may have open. */
static bool is_shared(const struct entry *entry)
{
    struct entry shared;
    return table_take(HELD_SHARED, entry->key, &shared) && entry->bytes > 0;
}

/* What is in no table is of a pool, or not the driver's. */
CUresult release(CUresult (*real)(CUdeviceptr), CUdeviceptr pointer)
{
    struct entry entry, previous;
    bool ours = table_take(HELD_POINTER, pointer, &entry); /* before the driver can hand the name out again */
    bool shared = ours && is_shared(&entry);
    uint64_t before = shared ? card_used(entry.device) : 0;
    CUresult answer = real(pointer);
    if (shared)
        return settle_shared(answer, &entry, before);
    if (ours && answer == CUDA_SUCCESS)
        give_back(&entry);
    else if (ours)
        table_put(&entry, &previous);
    else if (pools_known() && device_current() >= 0)
        pools_settle(device_current());
    return answer;
}

/* Of what others may have open only the card tells whether it is back, and it does so now: not if the stream is yet to
 * come there. */
CUresult release_async(CUresult (*real)(CUdeviceptr, CUstream), CUstream none, CUdeviceptr pointer, CUstream stream)
{
    CUstream meant = stream == NULL ? none : stream;
    struct entry entry, previous;
    if (stream_capturing(meant))
        return real(pointer, stream); /* freed when the graph is launched: charged until its name is used again */
    if (table_get(HELD_POINTER, pointer, &entry) && is_spilled(&entry))
        return release(REAL(cuMemFree_v2), pointer); /* it never was of a pool; this waits for its last use */
    bool ours = table_take(HELD_POINTER, pointer, &entry), shared = ours && is_shared(&entry);
    uint64_t before = shared ? card_used(entry.device) : 0;
    CUresult answer = real(pointer, stream);
    if (shared)
        return settle_shared(answer, &entry, before);
    if (ours && answer == CUDA_SUCCESS)
        free_in_order(&entry, meant);
    else if (ours)
        table_put(&entry, &previous);
    else if (answer == CUDA_SUCCESS && pools_known() && device_of_stream(meant) >= 0)
        pools_used(device_of_stream(meant), meant);
    return answer;
}
