/* Which of the grant's devices a call means, of a driver with contexts. */
#include "device.h"

#include "driver.h"
#include "held.h"

enum { NOT_ASKED = 0 };

/* The grant's device + 3 that every call means, of DEVICE_NONE when there are several; or NOT_ASKED. Constant once
 * asked, as in ordinals.c. */
static _Atomic int8_t only;

uint64_t threads_of(int device)
{
    int processors = 0, threads = 0;
    DRIVER(DeviceGetAttribute)(&processors, VALUE(DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), ordinal_of(device));
    DRIVER(DeviceGetAttribute)(&threads, VALUE(DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR), ordinal_of(device));
    return (uint64_t)processors * (uint64_t)threads;
}

static __attribute__((noinline)) int ask_only(void)
{
    int count;
    if (DRIVER(DeviceGetCount)(&count) != RESULT_OK)
        return DEVICE_NONE;
    int found = count == 1 ? device_of(0) : DEVICE_NONE;
    if (count != 1 || found != DEVICE_NONE)
        atomic_store_explicit(&only, (int8_t)(found + 3), memory_order_relaxed);
    return found;
}

/* With one device there is nothing to ask. */
int device_only(void)
{
    int seen = atomic_load_explicit(&only, memory_order_relaxed);
    return __builtin_expect(seen != NOT_ASKED, 1) ? seen - 3 : ask_only();
}

static atomic_bool any_green; /* set with the first, never cleared */

void context_is_green(context_t context, void *green, context_t primary)
{
    struct entry previous, entry = {.key = (uintptr_t)context, .kind = GREEN_CONTEXT, .owner = primary, .link = green};
    table_put(&entry, &previous);
    atomic_store(&any_green, true);
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
    bool green = atomic_load_explicit(&any_green, memory_order_relaxed) &&
                 table_get(GREEN_CONTEXT, (uintptr_t)context, &entry);
    return green ? entry.owner : context;
}

int device_current(void)
{
    device_t device;
    if (tenancy() == TENANCY_REFUSED)
        return DEVICE_FOREIGN;
    return DRIVER(CtxGetDevice)(&device) == RESULT_OK ? device_of(device) : DEVICE_NONE;
}

static __attribute__((noinline)) int find_device(stream_t stream)
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

/* For every launch: no registers are saved where there is nothing to ask. */
int device_of_stream(stream_t stream)
{
    int device = device_only();
    return __builtin_expect(device != DEVICE_NONE, 1) ? device : find_device(stream);
}

context_t context_of_stream(stream_t stream)
{
    context_t context;
    return DRIVER(StreamGetCtx)(stream, &context) == RESULT_OK ? context : context_current();
}

bool enter_context(context_t context, context_t *before)
{
    *before = context;
    return context != NULL && DRIVER(CtxPushCurrent_v2)(context) == RESULT_OK;
}

void leave_context(context_t before)
{
    DRIVER(CtxPopCurrent_v2)(&before);
}

void device_after_fork(void)
{
    ordinals_after_fork();
    atomic_store(&only, NOT_ASKED);
}
