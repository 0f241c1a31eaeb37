/* Orders captured launches and ends of captures (recording.h). */
#include "recording.h"

#include "governors.h"

/* The longest wait of one for the other. A signal handler may end the capture of the launch that it interrupts. */
#define MAX_WAIT_NS (50 * MS)

/* How many captured launches, and calls that end captures, are being made. */
static atomic_uint captured_launches, capture_ends;

static atomic_uint abandoned_wait_count; /* waits that ended after MAX_WAIT_NS */

void recording_after_fork(void)
{
    atomic_store(&captured_launches, 0);
    atomic_store(&capture_ends, 0);
}

static bool wait_for_none(atomic_uint *count)
{
    for (uint64_t start_ns = driver_engine.now(); atomic_load(count) > 0; driver_engine.pause(US))
        if (driver_engine.now() - start_ns > MAX_WAIT_NS) {
            atomic_fetch_add(&abandoned_wait_count, 1);
            return false;
        }
    return true;
}

bool recording_begins(stream_t stream, unsigned *abandoned_waits)
{
    *abandoned_waits = atomic_load(&abandoned_wait_count);
    atomic_fetch_add(&captured_launches, 1);
    for (bool must_wait = true; must_wait && atomic_load(&capture_ends) > 0;) {
        atomic_fetch_sub(&captured_launches, 1);
        must_wait = wait_for_none(&capture_ends);
        atomic_fetch_add(&captured_launches, 1);
    }
    if (stream_is_capturing(stream))
        return true;
    atomic_fetch_sub(&captured_launches, 1);
    return false;
}

bool recording_ends(stream_t stream, unsigned abandoned_waits)
{
    bool is_recorded = atomic_load(&abandoned_wait_count) == abandoned_waits || stream_is_capturing(stream);
    atomic_fetch_sub(&captured_launches, 1);
    return is_recorded;
}

void capture_end_begins(void)
{
    atomic_fetch_add(&capture_ends, 1);
    wait_for_none(&captured_launches);
}

void capture_end_over(void)
{
    atomic_fetch_sub(&capture_ends, 1);
}
