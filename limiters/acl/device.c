/* Finds the device that a call means: a thread has a current context, which is of one device. No function tells the
 * context of a stream. Work is put into streams of the current one alone, so that one is taken. */
#include "../shared/device.h"

#include "../shared/driver.h"

/* No function with a known prototype tells it. */
bool device_model(int device, char *name, size_t size_bytes)
{
    (void)device, (void)name, (void)size_bytes;
    return false;
}

int device_current(void)
{
    typeof(&FUNCTION(GetDevice)) get_device = DRIVER(GetDevice);
    device_t ordinal;
    if (tenancy() != TENANCY_HELD)
        return DEVICE_FOREIGN;
    work_begins();
    bool is_known = get_device != NULL ? get_device(&ordinal) == RESULT_OK
                                       : REAL(rtGetDevice) != NULL && REAL(rtGetDevice)(&ordinal) == RESULT_OK;
    int device = is_known ? device_of(ordinal) : DEVICE_NONE;
    work_ends();
    return device;
}

/* Where no device is current, a launch is of the grant's only one. Of several it is refused. */
int device_of_stream(stream_t stream)
{
    (void)stream;
    int device = device_current();
    if (device != DEVICE_NONE || tenancy() != TENANCY_HELD)
        return device;
    return tenant_grant->device_count == 1 ? 0 : DEVICE_FOREIGN;
}

/* The current device decides, however many there are. */
int sole_device(void)
{
    return DEVICE_NONE;
}

context_t context_current(void)
{
    typeof(&FUNCTION(GetCurrentContext)) get_context = DRIVER(GetCurrentContext);
    context_t context = NULL;
    return get_context != NULL && get_context(&context) == RESULT_OK ? context : NULL;
}

/* Memory is not a context's: it stays when one ends, and goes with its device. */
context_t context_of_memory(void)
{
    return NULL;
}

context_t context_of_stream(stream_t stream)
{
    (void)stream;
    return context_current();
}

bool enter_context(context_t context, context_t *previous)
{
    *previous = context_current();
    return context != NULL && (*previous == context || DRIVER(SetCurrentContext)(context) == RESULT_OK);
}

/* A thread that had none, as the governor's, keeps the one that it got. */
void leave_context(context_t previous)
{
    if (previous != NULL && previous != context_current())
        DRIVER(SetCurrentContext)(previous);
}

void device_after_fork(void)
{
    ordinals_after_fork();
}
