/* Sets and resets devices, and ends contexts and streams.
 *
 * A reset is counted: the last one drops the device. Another function drops it at once, whose arguments have no usable
 * source (jumps.c). Whether memory went with the device is told by the card's memory in use alone, which the runtime
 * tells only a thread that has set a device. So it is read before the reset, and again when the device is next set. If
 * the device had its context all the time, there was no reset.
 */
#include "reset.h"

#include "../hal/book.h"
#include "../hal/mark.h"
#include "../shared/bodies.h"
#include "../shared/capture.h"
#include "../shared/capturing.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/driver.h"
#include "../shared/governors.h"

#include "../core/fault.h"

#include <pthread.h>

#define ORDINALS 64

static pthread_mutex_t reset_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards `resets`, around no call of the runtime */

static struct {
    bool is_pending; /* it may have been reset, and nothing was given back since */
    struct card_use use_before;
} resets[HETERO_MAX_DEVICES];

/* The context that a device has for all threads that set it; NULL: not known. By the runtime's number of it. */
static _Atomic(context_t) primary_contexts[ORDINALS];

static char before_reset; /* its address is the owner of memory that was held when its device was reset */

static bool is_held_on(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_POINTER && entry->device == *(const int *)device;
}

static bool is_newer(const struct entry *entry, const void *device)
{
    return is_held_on(entry, device) && entry->owner != &before_reset;
}

static bool is_older(const struct entry *entry, const void *device)
{
    return is_held_on(entry, device) && entry->owner == &before_reset;
}

/* Note the memory that is held now as held before the reset. */
static void age_memory(int device)
{
    struct entry entry;
    while (table_take_match(is_newer, &device, &entry)) {
        entry.owner = &before_reset;
        keep_entry(&entry);
    }
}

struct sum {
    bool (*counts)(const struct entry *, const void *);
    int device;
    uint64_t bytes;
};

static bool add_entry(const struct entry *entry, const void *argument)
{
    struct sum *sum = *(struct sum *const *)argument;
    sum->bytes += sum->counts(entry, &sum->device) ? entry->bytes : 0;
    return false;
}

static uint64_t sum_of(bool (*counts)(const struct entry *, const void *), int device)
{
    struct entry unused;
    struct sum sum = {.counts = counts, .device = device}, *argument = &sum;
    table_find(add_entry, (const void *)&argument, &unused);
    return sum.bytes;
}

void reset_may_come(void)
{
    int device = device_current();
    if (!counted(device))
        return;
    struct card_use use_before = mark_use(device);
    pthread_mutex_lock(&reset_mutex);
    resets[device].is_pending = true;
    resets[device].use_before = use_before;
    pthread_mutex_unlock(&reset_mutex);
    age_memory(device);
}

static bool take_pending(int device, struct card_use *use_before)
{
    pthread_mutex_lock(&reset_mutex);
    bool is_pending = resets[device].is_pending;
    *use_before = resets[device].use_before;
    resets[device].is_pending = false;
    pthread_mutex_unlock(&reset_mutex);
    return is_pending;
}

/* Give back what was held at a reset, if the card has all of it back. What the process allocated since then is in use,
 * too. It is asked once: later on others may have freed as much. */
static void settle_reset(int device)
{
    struct card_use use_before;
    struct entry entry, shared_entry;
    if (!counted(device) || !take_pending(device, &use_before))
        return;
    use_before.card_bytes += sum_of(is_newer, device);
    if (!mark_got_back(device, use_before, sum_of(is_older, device)) && !FAULT(reset_memory_refunded))
        return;
    while (table_take_match(is_older, &device, &entry)) {
        if (table_take(HELD_SHARED, entry.key, &shared_entry))
            report_shared(device, -(int64_t)shared_entry.bytes);
        give_back(&entry);
    }
}

/* Whether a device has the context that its threads share. If so, it was not reset. */
static bool is_active(device_t ordinal)
{
    typeof(&FUNCTION(GetPrimaryCtxState)) get_state = DRIVER(GetPrimaryCtxState);
    struct card_use unused;
    uint32_t flags;
    int32_t active = 0;
    bool has_context = get_state != NULL && get_state(ordinal, &flags, &active) == RESULT_OK && active != 0;
    if (has_context && counted(device_of(ordinal)))
        take_pending(device_of(ordinal), &unused);
    return has_context;
}

void reset_after_fork(void)
{
    reset_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        resets[device].is_pending = false;
}

/* --------------------------------------------------------------------------------------------------------- devices */

static result_t device_was_set(result_t answer, device_t ordinal)
{
    if (answer != RESULT_OK)
        return answer;
    if (ordinal >= 0 && ordinal < ORDINALS)
        atomic_store(&primary_contexts[ordinal], context_current());
    hal_devices_learn();
    settle_reset(device_current());
    return answer;
}

result_t set_device(result_t (*real)(device_t), device_t ordinal)
{
    is_active(ordinal);
    return device_was_set(real(ordinal), ordinal);
}

result_t set_device_with(result_t (*real)(device_t, uint64_t), device_t ordinal, uint64_t flags)
{
    is_active(ordinal);
    return device_was_set(real(ordinal, flags), ordinal);
}

static context_t primary_context(device_t ordinal)
{
    return ordinal < 0 || ordinal >= ORDINALS ? NULL : atomic_load(&primary_contexts[ordinal]);
}

result_t reset_device(result_t (*real)(device_t), device_t ordinal)
{
    context_t context = primary_context(ordinal);
    reset_may_come();
    gates_before_context_ends(context);
    result_t answer = real(ordinal);
    bool is_alive = answer != RESULT_OK || is_active(ordinal);
    gates_after_context_ended(context, is_alive);
    if (!is_alive)
        forget_captures_of(context);
    return answer;
}

/* -------------------------------------------------------------------------------------------- contexts and streams */

result_t create_context(result_t (*real)(aclrtContext *, device_t), aclrtContext *context, device_t ordinal)
{
    result_t answer = real(context, ordinal);
    if (answer == RESULT_OK)
        hal_devices_learn();
    return answer;
}

result_t create_context_with(result_t (*real)(void **, uint32_t, device_t), void **context, uint32_t flags,
                             device_t ordinal)
{
    result_t answer = real(context, flags, ordinal);
    if (answer == RESULT_OK)
        hal_devices_learn();
    return answer;
}

/* With its last context a device is dropped, too. */
result_t destroy_context(result_t (*real)(aclrtContext), aclrtContext context)
{
    reset_may_come();
    gates_before_context_ends(context);
    result_t answer = real(context);
    gates_after_context_ended(context, answer != RESULT_OK);
    if (answer == RESULT_OK)
        forget_captures_of(context);
    return answer;
}

result_t destroy_stream(result_t (*real)(stream_t), stream_t stream)
{
    gates_before_stream_ends(stream);
    result_t answer = real(stream);
    if (answer == RESULT_OK)
        forget_capture((uintptr_t)stream); /* its end never came */
    return answer;
}

result_t wait_for_event(result_t (*real)(stream_t, event_t), stream_t null_stream, stream_t stream, event_t event)
{
    struct wait_ticket ticket;
    event_wait_begins(&ticket, stream == NULL ? null_stream : stream);
    result_t answer = real(stream, event);
    wait_leave(&ticket, answer);
    return answer;
}
