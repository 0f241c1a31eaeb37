/* Counts captures, and asks the driver whether a stream is captured while there is one (capturing.h). */
#include "capturing.h"

#include "driver.h"
#include "held.h"

_Atomic unsigned active_capture_count;

void capture_after_fork(void)
{
    atomic_store(&active_capture_count, 0);
}

bool note_capture(uint64_t capture_key, void *context)
{
    struct entry entry = {.kind = CAPTURE, .key = capture_key, .owner = context}, previous = {0};
    atomic_fetch_add(&active_capture_count, 1);
    table_put(&entry, &previous);
    if (previous.kind != 0)
        atomic_fetch_sub(&active_capture_count, 1);
    return previous.kind == 0;
}

void forget_capture(uint64_t capture_key)
{
    struct entry entry;
    if (table_take(CAPTURE, capture_key, &entry))
        atomic_fetch_sub(&active_capture_count, 1);
}

static bool captured_in(const struct entry *entry, const void *context)
{
    return entry->kind == CAPTURE && entry->owner == context;
}

void forget_captures_of(const void *context)
{
    struct entry entry;
    while (context != NULL && table_take_match(captured_in, context, &entry))
        atomic_fetch_sub(&active_capture_count, 1);
}

bool stream_is_capturing(stream_t stream)
{
    typeof(&FUNCTION(StreamIsCapturing)) is_capturing = DRIVER(StreamIsCapturing);
    if (!capturing() || is_capturing == NULL)
        return false;
    TYPE(streamCaptureStatus) status = VALUE(STREAM_CAPTURE_STATUS_NONE);
    /* An error means a capture that forbids the work, which the driver then refuses itself. */
    return QUERY_CAPTURE(is_capturing, STREAM_NAMED(stream), &status) != RESULT_OK ||
           status != VALUE(STREAM_CAPTURE_STATUS_NONE);
}

TYPE(streamCaptureMode) relax_captures(void)
{
    TYPE(streamCaptureMode) capture_mode = VALUE(STREAM_CAPTURE_MODE_RELAXED);
    typeof(&FUNCTION(ThreadExchangeStreamCaptureMode)) exchange = DRIVER(ThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&capture_mode);
    return capture_mode;
}

void restore_captures(TYPE(streamCaptureMode) capture_mode)
{
    typeof(&FUNCTION(ThreadExchangeStreamCaptureMode)) exchange = DRIVER(ThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&capture_mode);
}
