/* The memory sizes that programs see, and memory that is allocated by pointer. */
#include "arguments.h"
#include "blocks.h"
#include "bodies.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "pitch.h"
#include "pools.h"
#include "reclaim.h"
#include "spill.h"

#include "../core/fault.h"

result_t memory_info(result_t (*real)(size_t *, size_t *), size_t *free_bytes, size_t *total_bytes)
{
    result_t answer = real(free_bytes, total_bytes);
    int device = device_current();
    if (answer != RESULT_OK || (device != DEVICE_FOREIGN && !counted(device)))
        return answer;
    if (device != DEVICE_FOREIGN && tenant_region() != NULL) {
        reclaim_settle();
        pools_settle(device);
    }
    uint64_t limit_bytes, remaining_bytes = grant_left_bytes(device, &limit_bytes);
    bool may_spill = device != DEVICE_FOREIGN && (terms_flags(tenant_terms(device)) & HETERO_FLAG_SPILL) != 0;
    if (free_bytes != NULL && (*free_bytes > remaining_bytes || may_spill))
        *free_bytes = remaining_bytes;
    if (total_bytes != NULL)
        *total_bytes = limit_bytes;
    return answer;
}

result_t total_shown(result_t answer, size_t *bytes, device_t ordinal)
{
    int device = device_of(ordinal);
    if (answer == RESULT_OK && (device == DEVICE_FOREIGN || counted(device)))
        *bytes = device == DEVICE_FOREIGN ? 0 : terms_memory(tenant_terms(device));
    return answer;
}

result_t total_memory(result_t (*real)(size_t *, device_t), size_t *bytes, device_t ordinal)
{
    return total_shown(real(bytes, ordinal), bytes, ordinal);
}

/* --------------------------------------------------------------------------------------------------------- pointers */

result_t allocate(result_t (*real)(pointer_t *, size_t), pointer_t *pointer, size_t bytes)
{
    int device = device_current();
    uint64_t block_bytes = block_bytes_of(bytes), charged_bytes = block_bytes;
    if (!charge_if_free(device, block_bytes)) {
        charged_bytes = chargeable_bytes(device, bytes, block_bytes);
        result_t charge_result = charge(device, charged_bytes);
        if (charge_result != RESULT_OK)
            return settle_blocks(charge_result, NULL, DEVICE_NONE, block_bytes, charged_bytes);
    }
    result_t answer = real(pointer, bytes);
    if (block_bytes == 0)
        return spills(answer, device) ? allocate_spilled(pointer, device, bytes)
                                      : settle_suballocation(answer, pointer, device);
    if (spills(answer, device))
        return settle_spill(pointer, device, bytes, charged_bytes);
    return settle_blocks(answer, pointer, device, block_bytes, charged_bytes);
}

result_t allocate_managed(result_t (*real)(pointer_t *, size_t, unsigned), pointer_t *pointer, size_t bytes,
                          unsigned flags)
{
    int device = device_current();
    result_t charge_result = charge_managed(device, bytes);
    if (charge_result != RESULT_OK)
        return charge_result;
    return settle_managed(real(pointer, bytes, flags), pointer, device, bytes);
}

/* Replace a charge by one of another size. False: it does not fit, and nothing is charged any more. */
static bool recharge(int device, uint64_t charged_bytes, uint64_t bytes)
{
    if (bytes < charged_bytes)
        refund(device, charged_bytes - bytes);
    if (bytes <= charged_bytes || charge(device, bytes - charged_bytes) == RESULT_OK)
        return true;
    refund(device, charged_bytes);
    return false;
}

uint64_t pitched_bytes(size_t width_bytes, size_t rows, size_t slices)
{
    uint64_t row_bytes, slice_bytes, bytes;
    if (__builtin_add_overflow(width_bytes, PITCH_STEP - 1, &row_bytes) ||
        __builtin_mul_overflow(row_bytes / PITCH_STEP * PITCH_STEP, rows, &slice_bytes) ||
        __builtin_mul_overflow(slice_bytes, slices, &bytes))
        return UINT64_MAX;
    return bytes;
}

result_t settle_pitched(pointer_t *pointer, int device, uint64_t charged_bytes, uint64_t bytes)
{
    uint64_t block_bytes = block_bytes_of(bytes);
    if (!counted(device))
        return RESULT_OK;
    if (!recharge(device, charged_bytes, block_bytes)) {
        DRIVER(MemFree_v2)(*pointer);
        return ERROR(OUT_OF_MEMORY);
    }
    return block_bytes == 0 ? settle_suballocation(RESULT_OK, pointer, device)
                            : settle_pointer(RESULT_OK, pointer, device, block_bytes, NULL);
}

static result_t allocate_rows_of(result_t (*real)(pointer_t *, size_t *, size_t, size_t, unsigned), pointer_t *pointer,
                                 size_t *pitch_bytes, size_t width_bytes, size_t rows, unsigned element_bytes)
{
    ALLOCATE_PITCHED(width_bytes, rows, 1, pointer, *pitch_bytes, *pitch_bytes * rows,
                     real(pointer, pitch_bytes, width_bytes, rows, element_bytes));
}

result_t allocate_pitch(result_t (*real)(pointer_t *, size_t *, size_t, size_t, unsigned), pointer_t *pointer,
                        size_t *pitch_bytes, size_t width_bytes, size_t rows, unsigned element_bytes)
{
    size_t private_pitch = 0;
    size_t *pitch_output = FAULT_VALUE(pitch_unguarded, &private_pitch, pitch_bytes);
    result_t answer = allocate_rows_of(real, pointer, pitch_bytes == NULL ? NULL : pitch_output, width_bytes, rows,
                                       element_bytes);
    if (!FAULT(pitch_unguarded))
        publish_output((uintptr_t)pitch_bytes, &private_pitch, answer == RESULT_OK ? sizeof private_pitch : 0);
    return answer;
}

static struct card_use before_free(bool is_shared, const struct entry *entry)
{
    return is_shared ? card_use(entry->device) : (struct card_use){0};
}

/* After the driver's answer for freeing a shared allocation. `use_before`: the card's use before the call. */
static result_t settle_shared(result_t answer, const struct entry *entry, struct card_use use_before)
{
    struct entry previous;
    if (answer != RESULT_OK)
        table_put(entry, &previous);
    else
        shared_freed(entry, use_before);
    return answer;
}

/* A pointer without an entry is of a pool, or unknown to the driver. */
result_t release(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct entry entry, previous;
    /* Taken out before the driver can reuse the address. */
    bool is_known = table_take(HELD_POINTER, (uintptr_t)pointer, &entry) || take_imported((uintptr_t)pointer, &entry);
    bool is_shared_entry = is_known && is_shared(&entry) && !FAULT(shared_memory_refunded);
    struct card_use use_before = before_free(is_shared_entry, &entry);
    result_t answer = real(pointer);
    if (is_shared_entry)
        return settle_shared(answer, &entry, use_before);
    if (is_known && answer == RESULT_OK)
        give_back(&entry);
    else if (is_known)
        table_put(&entry, &previous);
    else if (pools_known() && device_current() >= 0)
        pools_settle(device_current());
    return answer;
}

/* The card gets memory that was freed in a stream's order back when a thread waits for the stream. If the stream has
 * passed the free, that wait returns at once. */
static result_t wait_if_passed(result_t answer, stream_t stream)
{
    TYPE(streamCaptureMode) capture_mode = relax_captures();
    if (answer == RESULT_OK && DRIVER(StreamQuery)(stream) == RESULT_OK)
        DRIVER(StreamSynchronize)(stream);
    restore_captures(capture_mode);
    return answer;
}

/* Whether shared memory is back is known from the card only, right after the call. If the stream has not passed the
 * free yet, the memory stays charged. */
result_t release_async(result_t (*real)(pointer_t, stream_t), stream_t null_stream, pointer_t pointer, stream_t stream)
{
    stream_t actual_stream = stream == NULL ? null_stream : stream;
    struct entry entry, previous;
    if (stream_is_capturing(actual_stream))
        return real(pointer, stream); /* freed by a launch of the graph: charged until its address is reused */
    if (table_get(HELD_POINTER, (uintptr_t)pointer, &entry) && is_spilled(&entry))
        return release(DRIVER(MemFree_v2), pointer); /* no pool has it; MemFree waits for its last use */
    bool is_known = table_take(HELD_POINTER, (uintptr_t)pointer, &entry) || take_imported((uintptr_t)pointer, &entry),
         is_shared_entry = is_known && is_shared(&entry);
    struct card_use use_before = before_free(is_shared_entry, &entry);
    result_t answer = real(pointer, stream);
    if (is_shared_entry)
        return settle_shared(wait_if_passed(answer, actual_stream), &entry, use_before);
    if (is_known && answer == RESULT_OK)
        free_in_order(&entry, actual_stream);
    else if (is_known)
        table_put(&entry, &previous);
    else if (answer == RESULT_OK && pools_known() && device_of_stream(actual_stream) >= 0)
        pools_used(device_of_stream(actual_stream), actual_stream);
    return answer;
}
