/* How memory ends of an API without contexts: devices are reset, and a pool keeps what is freed.
 *
 * AMD's runtime 5.2.3 forgets all memory of a device that is reset and gives none back: hipFree does not know it any
 * more, and the card has it until the process ends. Whether another gives it back, its figure of what is free tells.
 * What is not held by pointer or of a pool (arrays, modules, blocks) stays charged until it is freed.
 */
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "ends.h"
#include "pools.h"

#include "../core/fault.h"

/* What is held on a device by pointer or of a pool: how much, but for pieces, which have no size of their own; one of
 * it; and what the device has free. */
struct holding {
    int device;
    uint64_t bytes, one;
    size_t left;
};

static bool is_of_pool_or_pointer(const struct entry *entry)
{
    return entry->kind == HELD_POINTER || entry->kind == HELD_CHUNK || entry->kind == HELD_FREED;
}

static bool count(const struct entry *entry, const void *argument)
{
    struct holding *all = *(struct holding *const *)argument;
    if (is_of_pool_or_pointer(entry) && entry->device == all->device && entry->owner) {
        all->bytes += entry->bytes;
        all->one = entry->key;
    }
    return false;
}

static size_t left_now(void)
{
    size_t left, all;
    return DRIVER(MemGetInfo)(&left, &all) == RESULT_OK ? left : 0;
}

static struct holding before_reset(context_t context)
{
    struct entry none;
    struct holding all = {.device = device_of(ORDINAL_OF(context))}, *argument = &all;
    before_context_ends(context);
    table_find(count, (const void *)&argument, &none);
    all.left = all.bytes > 0 && context == context_current() ? left_now() : 0;
    return all;
}

static bool is_known(uint64_t address)
{
    pointer_t start;
    size_t bytes;
    return DRIVER(MemGetAddressRange)(&start, &bytes, (pointer_t)(uintptr_t)address) == RESULT_OK;
}

static bool is_held_on(const struct entry *entry, const void *device)
{
    return is_of_pool_or_pointer(entry) && entry->device == *(const int *)device && entry->owner != NULL;
}

/* What is lost has no owner: no other reset ends it. */
static void after_reset(context_t context, struct holding before)
{
    struct entry entry;
    bool back = before.left > 0 && left_now() >= before.left + before.bytes;
    streams_ended(context);
    if (before.one != 0 && is_known(before.one))
        return; /* nothing was reset */
    while (table_take_match(is_held_on, &before.device, &entry)) {
        entry.owner = NULL;
        if (!back && !FAULT(reset_memory_refunded))
            keep(&entry);
        else if (is_shared(&entry))
            shared_over(&entry, (struct card_use){0});
        else
            give_back(&entry);
    }
    pools_context_over(context);
}

#define RESET(context_, call)                                                                                          \
    do {                                                                                                               \
        context_t context = context_;                                                                                  \
        struct holding before = before_reset(context);                                                                 \
        result_t answer = call;                                                                                        \
        context_call_over(context, answer != RESULT_OK);                                                               \
        if (answer == RESULT_OK)                                                                                       \
            after_reset(context, before);                                                                              \
        return answer;                                                                                                 \
    } while (0)

result_t reset_primary(result_t (*real)(device_t), device_t device)
{
    RESET(CONTEXT_OF(device), real(device));
}

result_t reset_device(result_t (*real)(void))
{
    RESET(context_current(), real());
}

result_t release_in_order(result_t (*real)(pointer_t, stream_t), stream_t none, pointer_t pointer, stream_t stream)
{
    struct entry chunk;
    bool pooled = table_get(HELD_CHUNK, (uintptr_t)pointer, &chunk) &&
                  !stream_capturing(stream == NULL ? none : stream);
    if (!pooled && pool_keeps(pointer))
        return RESULT_OK;
    return pooled ? pool_release(real, pointer, stream) : release_async(real, none, pointer, stream);
}

result_t release_any(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct entry chunk;
    bool pooled = table_get(HELD_CHUNK, (uintptr_t)pointer, &chunk) && chunk.owner != NULL;
    if (!pooled && pool_keeps(pointer))
        return RESULT_OK;
    return pooled ? pool_release_at_once(real, pointer) : release(real, pointer);
}
