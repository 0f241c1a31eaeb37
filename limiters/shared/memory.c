/* Memory: what there is of it, and memory that is got by pointer. */
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
#include "room.h"

#include "../core/fault.h"
#include "../core/ledger.h"

result_t memory_info(result_t (*real)(size_t *, size_t *), size_t *free, size_t *total)
{
    result_t answer = real(free, total);
    int device = device_current();
    if (answer != RESULT_OK || (device != DEVICE_FOREIGN && !counted(device)))
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

result_t total_shown(result_t answer, size_t *bytes, device_t device)
{
    int ours = device_of(device);
    if (answer == RESULT_OK && (ours == DEVICE_FOREIGN || counted(ours)))
        *bytes = ours == DEVICE_FOREIGN ? 0 : terms_memory(tenant_terms(ours));
    return answer;
}

result_t total_memory(result_t (*real)(size_t *, device_t), size_t *bytes, device_t device)
{
    return total_shown(real(bytes, device), bytes, device);
}

/* --------------------------------------------------------------------------------------------------------- pointers */

result_t allocate(result_t (*real)(pointer_t *, size_t), pointer_t *pointer, size_t bytes)
{
    int device = device_current();
    uint64_t held = blocks_for(bytes), charged = held;
    if (!charge_at_once(device, held)) {
        charged = blocks_charged(device, bytes, held);
        result_t refused = charge(device, charged);
        if (refused != RESULT_OK)
            return settle_blocks(refused, NULL, DEVICE_NONE, held, charged);
    }
    result_t answer = real(pointer, bytes);
    if (held == 0)
        return spills(answer, device) ? allocate_spilled(pointer, device, bytes)
                                      : settle_piece(answer, pointer, device);
    if (spills(answer, device))
        return settle_spill(pointer, device, bytes, charged);
    return settle_blocks(answer, pointer, device, held, charged);
}

result_t allocate_managed(result_t (*real)(pointer_t *, size_t, unsigned), pointer_t *pointer, size_t bytes,
                          unsigned flags)
{
    int device = device_current();
    result_t refused = charge_managed(device, bytes);
    if (refused != RESULT_OK)
        return refused;
    return settle_managed(real(pointer, bytes, flags), pointer, device, bytes);
}

/* What was charged turns out to be another size. False: that does not fit, and nothing is charged any more. */
static bool recharge(int device, uint64_t charged, uint64_t bytes)
{
    if (bytes < charged)
        refund(device, charged - bytes);
    if (bytes <= charged || charge(device, bytes - charged) == RESULT_OK)
        return true;
    refund(device, charged);
    return false;
}

uint64_t pitched(size_t width, size_t height, size_t depth)
{
    uint64_t row, slice, bytes;
    if (__builtin_add_overflow(width, PITCH_STEP - 1, &row) ||
        __builtin_mul_overflow(row / PITCH_STEP * PITCH_STEP, height, &slice) ||
        __builtin_mul_overflow(slice, depth, &bytes))
        return UINT64_MAX;
    return bytes;
}

result_t settle_pitched(pointer_t *pointer, int device, uint64_t charged, uint64_t bytes)
{
    uint64_t held = blocks_for(bytes);
    if (!counted(device))
        return RESULT_OK;
    if (!recharge(device, charged, held)) {
        DRIVER(MemFree_v2)(*pointer);
        return ERROR(OUT_OF_MEMORY);
    }
    return held == 0 ? settle_piece(RESULT_OK, pointer, device)
                     : settle_pointer(RESULT_OK, pointer, device, held, NULL);
}

static result_t allocate_rows_of(result_t (*real)(pointer_t *, size_t *, size_t, size_t, unsigned), pointer_t *pointer,
                                 size_t *pitch, size_t width, size_t height, unsigned element)
{
    ALLOCATE_PITCHED(width, height, 1, pointer, *pitch, *pitch * height, real(pointer, pitch, width, height, element));
}

result_t allocate_pitch(result_t (*real)(pointer_t *, size_t *, size_t, size_t, unsigned), pointer_t *pointer,
                        size_t *pitch, size_t width, size_t height, unsigned element)
{
    size_t ours = 0;
    size_t *made = FAULT_VALUE(pitch_unguarded, &ours, pitch);
    result_t answer = allocate_rows_of(real, pointer, pitch == NULL ? NULL : made, width, height, element);
    if (!FAULT(pitch_unguarded))
        show_made((uintptr_t)pitch, &ours, answer == RESULT_OK ? sizeof ours : 0);
    return answer;
}

static struct card_use before_free(bool shared, const struct entry *entry)
{
    return shared ? card_use(entry->device) : (struct card_use){0};
}

/* A pointer that others may have open was freed, or not. `before`: what was used of the card. */
static result_t settle_shared(result_t answer, const struct entry *entry, struct card_use before)
{
    struct entry previous;
    if (answer != RESULT_OK)
        table_put(entry, &previous);
    else
        shared_over(entry, before);
    return answer;
}

/* What is in no table is of a pool, or not the driver's. */
result_t release(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct entry entry, previous;
    /* Before the driver can hand the name out again. */
    bool ours = table_take(HELD_POINTER, (uintptr_t)pointer, &entry) || take_imported((uintptr_t)pointer, &entry);
    bool shared = ours && is_shared(&entry) && !FAULT(shared_memory_refunded);
    struct card_use before = before_free(shared, &entry);
    result_t answer = real(pointer);
    if (shared)
        return settle_shared(answer, &entry, before);
    if (ours && answer == RESULT_OK)
        give_back(&entry);
    else if (ours)
        table_put(&entry, &previous);
    else if (pools_known() && device_current() >= 0)
        pools_settle(device_current());
    return answer;
}

/* The card has back what its stream freed once somebody waits for the stream, which ends at once if it has passed. */
static result_t wait_if_passed(result_t answer, stream_t stream)
{
    TYPE(streamCaptureMode) mode = relax_captures();
    if (answer == RESULT_OK && DRIVER(StreamQuery)(stream) == RESULT_OK)
        DRIVER(StreamSynchronize)(stream);
    restore_captures(mode);
    return answer;
}

/* Of what others may have open only the card tells whether it is back, and it does so now: not if the stream is yet to
 * come there. */
result_t release_async(result_t (*real)(pointer_t, stream_t), stream_t none, pointer_t pointer, stream_t stream)
{
    stream_t meant = stream == NULL ? none : stream;
    struct entry entry, previous;
    if (stream_capturing(meant))
        return real(pointer, stream); /* freed when the graph is launched: charged until its name is used again */
    if (table_get(HELD_POINTER, (uintptr_t)pointer, &entry) && is_spilled(&entry))
        return release(DRIVER(MemFree_v2), pointer); /* it never was of a pool; this waits for its last use */
    bool ours = table_take(HELD_POINTER, (uintptr_t)pointer, &entry) || take_imported((uintptr_t)pointer, &entry),
         shared = ours && is_shared(&entry);
    struct card_use before = before_free(shared, &entry);
    result_t answer = real(pointer, stream);
    if (shared)
        return settle_shared(wait_if_passed(answer, meant), &entry, before);
    if (ours && answer == RESULT_OK)
        free_in_order(&entry, meant);
    else if (ours)
        table_put(&entry, &previous);
    else if (answer == RESULT_OK && pools_known() && device_of_stream(meant) >= 0)
        pools_used(device_of_stream(meant), meant);
    return answer;
}
