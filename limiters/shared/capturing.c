/* Counts captures, and asks the driver about a stream while there is one (capturing.h). */
#include "capturing.h"

#include "driver.h"
#include "held.h"

_Atomic unsigned captures;

void capture_after_fork(void)
{
    atomic_store(&captures, 0);
}

bool capture_counted(uint64_t stream, void *context)
{
    struct entry entry = {.kind = CAPTURE, .key = stream, .owner = context}, previous = {0};
    atomic_fetch_add(&captures, 1);
    table_put(&entry, &previous);
    if (previous.kind != 0)
        atomic_fetch_sub(&captures, 1);
    return previous.kind == 0;
}

void capture_over(uint64_t stream)
{
    struct entry entry;
    if (table_take(CAPTURE, stream, &entry))
        atomic_fetch_sub(&captures, 1);
}

static bool captured_in(const struct entry *entry, const void *context)
{
    return entry->kind == CAPTURE && entry->owner == context;
}

void captures_over(const void *context)
{
    struct entry entry;
    while (context != NULL && table_take_match(captured_in, context, &entry))
        atomic_fetch_sub(&captures, 1);
}

bool stream_capturing(stream_t stream)
{
    typeof(&FUNCTION(StreamIsCapturing)) ask = DRIVER(StreamIsCapturing);
    if (!capturing() || ask == NULL)
        return false;
    TYPE(streamCaptureStatus) status = VALUE(STREAM_CAPTURE_STATUS_NONE);
    /* An error means a capture that forbids the work: the driver will say so itself. */
    return ask(STREAM_NAMED(stream), &status) != RESULT_OK || status != VALUE(STREAM_CAPTURE_STATUS_NONE);
}

TYPE(streamCaptureMode) relax_captures(void)
{
    TYPE(streamCaptureMode) mode = VALUE(STREAM_CAPTURE_MODE_RELAXED);
    typeof(&FUNCTION(ThreadExchangeStreamCaptureMode)) exchange = DRIVER(ThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&mode);
    return mode;
}

void restore_captures(TYPE(streamCaptureMode) mode)
{
    typeof(&FUNCTION(ThreadExchangeStreamCaptureMode)) exchange = DRIVER(ThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&mode);
}
