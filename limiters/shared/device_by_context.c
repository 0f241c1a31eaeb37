/* Finds the device that a call means, for drivers with contexts. */
#include "device.h"

#include "driver.h"
#include "held.h"

enum { NOT_ASKED = 0 };

/* sole_device() + 3, or NOT_ASKED. The 3 makes all values positive. Constant once asked, as in ordinals.c. */
static _Atomic int8_t sole_device_plus_3;

uint64_t threads_of(int device)
{
    int processor_count = 0, threads_per_processor = 0;
    DRIVER(DeviceGetAttribute)(&processor_count, VALUE(DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), ordinal_of(device));
    DRIVER(DeviceGetAttribute)(&threads_per_processor, VALUE(DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
                               ordinal_of(device));
    return (uint64_t)processor_count * (uint64_t)threads_per_processor;
}

static __attribute__((noinline)) int find_sole_device(void)
{
    int ordinal_count;
    if (DRIVER(DeviceGetCount)(&ordinal_count) != RESULT_OK)
        return DEVICE_NONE;
    int device = ordinal_count == 1 ? device_of(0) : DEVICE_NONE;
    if (ordinal_count != 1 || device != DEVICE_NONE)
        atomic_store_explicit(&sole_device_plus_3, (int8_t)(device + 3), memory_order_relaxed);
    return device;
}

/* With one device no driver call is needed. */
int sole_device(void)
{
    int cached = atomic_load_explicit(&sole_device_plus_3, memory_order_relaxed);
    return __builtin_expect(cached != NOT_ASKED, 1) ? cached - 3 : find_sole_device();
}

static atomic_bool has_green_contexts; /* set with the first, never cleared */

void context_is_green(context_t context, void *green_context, context_t primary_context)
{
    struct entry previous,
        entry = {.key = (uintptr_t)context, .kind = GREEN_CONTEXT, .owner = primary_context, .link = green_context};
    table_put(&entry, &previous);
    atomic_store(&has_green_contexts, true);
}

context_t context_current(void)
{
    context_t context = NULL;
    return DRIVER(CtxGetCurrent)(&context) == RESULT_OK ? context : NULL;
}

context_t context_of_memory(void)
{
    context_t context = context_current();
    struct entry entry;
    bool is_green = atomic_load_explicit(&has_green_contexts, memory_order_relaxed) &&
                    table_get(GREEN_CONTEXT, (uintptr_t)context, &entry);
    return is_green ? entry.owner : context;
}

int device_current(void)
{
    device_t ordinal;
    if (tenancy() == TENANCY_REFUSED)
        return DEVICE_FOREIGN;
    return DRIVER(CtxGetDevice)(&ordinal) == RESULT_OK ? device_of(ordinal) : DEVICE_NONE;
}

static __attribute__((noinline)) int find_device_of_stream(stream_t stream)
{
    if (stream == STREAM_LEGACY || stream == STREAM_PER_THREAD)
        return device_current();
    struct entry entry, previous;
    if (table_get(STREAM_DEVICE, (uintptr_t)stream, &entry))
        return entry.device;
    context_t context;
    if (DRIVER(StreamGetCtx)(stream, &context) != RESULT_OK || DRIVER(CtxPushCurrent_v2)(context) != RESULT_OK)
        return device_current();
    entry =
        (struct entry){.key = (uintptr_t)stream, .kind = STREAM_DEVICE, .device = device_current(), .owner = context};
    DRIVER(CtxPopCurrent_v2)(&context);
    table_put(&entry, &previous);
    return entry.device;
}

/* Called for every launch. With one device it calls nothing, so that no registers are saved. */
int device_of_stream(stream_t stream)
{
    int device = sole_device();
    return __builtin_expect(device != DEVICE_NONE, 1) ? device : find_device_of_stream(stream);
}

context_t context_of_stream(stream_t stream)
{
    context_t context;
    return DRIVER(StreamGetCtx)(stream, &context) == RESULT_OK ? context : context_current();
}

bool enter_context(context_t context, context_t *previous)
{
    *previous = context;
    return context != NULL && DRIVER(CtxPushCurrent_v2)(context) == RESULT_OK;
}

void leave_context(context_t previous)
{
    DRIVER(CtxPopCurrent_v2)(&previous);
}

void device_after_fork(void)
{
    ordinals_after_fork();
    atomic_store(&sole_device_plus_3, NOT_ASKED);
}
