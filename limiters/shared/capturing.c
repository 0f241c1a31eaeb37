/* Counts captures, and asks the driver about a stream while there is one (capturing.h). */
#include "capturing.h"

#include "driver.h"
#include "governors.h"
#include "held.h"

/* Neither waits for the other for longer: a signal handler may end the capture of the launch that it interrupts. */
#define WAITED_NS (50 * MS)

_Atomic unsigned captures;

/* Launches that are captured, and calls that end captures. */
static atomic_uint recording, ending;

void capture_after_fork(void)
{
    atomic_store(&recording, 0);
    atomic_store(&ending, 0);
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

static bool wait_for_none(atomic_uint *count)
{
    for (uint64_t since = driver_engine.now(); atomic_load(count) > 0; driver_engine.pause(US))
        if (driver_engine.now() - since > WAITED_NS)
            return false;
    return true;
}

bool recording_begins(stream_t stream)
{
    atomic_fetch_add(&recording, 1);
    while (atomic_load(&ending) > 0) {
        recording_ends();
        if (!wait_for_none(&ending))
            return false;
        atomic_fetch_add(&recording, 1);
    }
    if (stream_capturing(stream))
        return true;
    recording_ends();
    return false;
}

void recording_ends(void)
{
    atomic_fetch_sub(&recording, 1);
}

void capture_end_begins(void)
{
    atomic_fetch_add(&ending, 1);
    wait_for_none(&recording);
}

void capture_end_over(void)
{
    atomic_fetch_sub(&ending, 1);
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
