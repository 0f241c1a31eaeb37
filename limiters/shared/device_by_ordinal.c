/* Finds the device that a call means, for drivers that have a current device and no contexts. The ordinal + 1 stands
 * for a device's context (CONTEXT_OF). */
#include "context.h"
#include "device.h"
#include "driver.h"

static int ordinal_current(void)
{
    int ordinal;
    return DRIVER(GetDevice)(&ordinal) == RESULT_OK ? ordinal : -1;
}

int device_current(void)
{
    return tenancy() == TENANCY_REFUSED ? DEVICE_FOREIGN : device_of(ordinal_current());
}

/* Older drivers have a function that returns the ordinal. */
static int ordinal_of_stream(stream_t stream)
{
    device_t ordinal;
    if (stream == STREAM_LEGACY || stream == STREAM_PER_THREAD)
        return ordinal_current();
    if (DRIVER(StreamGetDevice) != NULL)
        return DRIVER(StreamGetDevice)(stream, &ordinal) == RESULT_OK ? ordinal : ordinal_current();
    return DRIVER(GetStreamDeviceId) != NULL ? (int)DRIVER(GetStreamDeviceId)(stream) : ordinal_current();
}

int device_of_stream(stream_t stream)
{
    work_begins(); /* a launch may be the first call */
    int device = device_of(ordinal_of_stream(stream));
    work_ends();
    return device;
}

/* The current device decides, however many there are. */
int sole_device(void)
{
    return DEVICE_NONE;
}

context_t context_current(void)
{
    return CONTEXT_OF(ordinal_current());
}

context_t context_of_memory(void)
{
    return context_current();
}

context_t context_of_stream(stream_t stream)
{
    return CONTEXT_OF(ordinal_of_stream(stream));
}

bool enter_context(context_t context, context_t *previous)
{
    *previous = context_current();
    return *previous == context || DRIVER(SetDevice)(ORDINAL_OF(context)) == RESULT_OK;
}

void leave_context(context_t previous)
{
    if (previous != context_current())
        DRIVER(SetDevice)(ORDINAL_OF(previous));
}

void device_after_fork(void)
{
    ordinals_after_fork();
}

/* Without contexts there is no such state (context.c, limits.c). */
void context_after_fork(void)
{
}

void limits_after_fork(void)
{
}
