/* Ends memory for APIs without contexts: devices are reset, and pools keep what is freed.
 *
 * AMD's runtime 5.2.3 forgets all memory of a device that is reset and frees none. hipFree does not know it any more,
 * and it stays on the card until the process ends. Whether another runtime frees it is told by the free memory that it
 * reports. Arrays, modules and VMM blocks stay charged until they are freed.
 */
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "ends.h"
#include "pools.h"

#include "../core/fault.h"

/* Memory that is held on a device by pointer or in pools. */
struct holding {
    int device;
    uint64_t bytes, sample_address;
    size_t free_bytes;
};

static bool is_of_pool_or_pointer(const struct entry *entry)
{
    return entry->kind == HELD_POINTER || entry->kind == HELD_CHUNK || entry->kind == HELD_FREED;
}

static bool sum_held(const struct entry *entry, const void *argument)
{
    struct holding *holding = *(struct holding *const *)argument;
    if (is_of_pool_or_pointer(entry) && entry->device == holding->device && entry->owner) {
        holding->bytes += entry->bytes;
        holding->sample_address = entry->key;
    }
    return false;
}

static size_t free_bytes_now(void)
{
    size_t free_bytes, total_bytes;
    return DRIVER(MemGetInfo)(&free_bytes, &total_bytes) == RESULT_OK ? free_bytes : 0;
}

static struct holding before_reset(context_t context)
{
    struct entry unused;
    struct holding holding = {.device = device_of(ORDINAL_OF(context))}, *argument = &holding;
    before_context_ends(context);
    table_find(sum_held, (const void *)&argument, &unused);
    holding.free_bytes = holding.bytes > 0 && context == context_current() ? free_bytes_now() : 0;
    return holding;
}

static bool is_known_address(uint64_t address)
{
    pointer_t start;
    size_t bytes;
    return DRIVER(MemGetAddressRange)(&start, &bytes, (pointer_t)(uintptr_t)address) == RESULT_OK;
}

static bool is_held_on(const struct entry *entry, const void *device)
{
    return is_of_pool_or_pointer(entry) && entry->device == *(const int *)device && entry->owner != NULL;
}

/* Memory that the reset lost stays charged without an owner, so that no later reset ends it. */
static void after_reset(context_t context, struct holding holding_before)
{
    struct entry entry;
    bool is_returned = holding_before.free_bytes > 0 &&
                       free_bytes_now() >= holding_before.free_bytes + holding_before.bytes;
    streams_ended(context);
    if (holding_before.sample_address != 0 && is_known_address(holding_before.sample_address))
        return; /* the runtime still knows an allocation: nothing was reset */
    while (table_take_match(is_held_on, &holding_before.device, &entry)) {
        entry.owner = NULL;
        if (!is_returned && !FAULT(reset_memory_refunded))
            keep_entry(&entry);
        else if (is_shared(&entry))
            shared_freed(&entry, (struct card_use){0});
        else
            give_back(&entry);
    }
    pools_context_ended(context);
}

#define RESET(context_, call)                                                                                          \
    do {                                                                                                               \
        context_t context = context_;                                                                                  \
        struct holding holding_before = before_reset(context);                                                         \
        result_t answer = call;                                                                                        \
        context_call_over(context, answer != RESULT_OK);                                                               \
        if (answer == RESULT_OK)                                                                                       \
            after_reset(context, holding_before);                                                                      \
        return answer;                                                                                                 \
    } while (0)

result_t reset_primary(result_t (*real)(device_t), device_t ordinal)
{
    RESET(CONTEXT_OF(ordinal), real(ordinal));
}

result_t reset_device(result_t (*real)(void))
{
    RESET(context_current(), real());
}

result_t release_in_order(result_t (*real)(pointer_t, stream_t), stream_t null_stream, pointer_t pointer,
                          stream_t stream)
{
    struct entry chunk;
    bool is_pooled = table_get(HELD_CHUNK, (uintptr_t)pointer, &chunk) &&
                     !stream_is_capturing(stream == NULL ? null_stream : stream);
    if (!is_pooled && pool_keeps(pointer))
        return RESULT_OK;
    return is_pooled ? pool_release(real, pointer, stream) : release_async(real, null_stream, pointer, stream);
}

result_t release_any(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct entry chunk;
    bool is_pooled = table_get(HELD_CHUNK, (uintptr_t)pointer, &chunk) && chunk.owner != NULL;
    if (!is_pooled && pool_keeps(pointer))
        return RESULT_OK;
    return is_pooled ? pool_release_at_once(real, pointer) : release(real, pointer);
}
