/* Orders captured launches and ends of captures (recording.h). */
#include "recording.h"

#include "governors.h"

/* The longest wait of one for the other. A signal handler may end the capture of the launch that it interrupts. */
#define MAX_WAIT_NS (50 * MS)

/* The captured launches, and the calls that end captures, that are being made. */
static atomic_uint captured_launch_count, capture_end_count;

static atomic_uint abandoned_wait_count; /* waits that ended after MAX_WAIT_NS */

void recording_after_fork(void)
{
    atomic_store(&captured_launch_count, 0);
    atomic_store(&capture_end_count, 0);
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

bool recording_begins(stream_t stream, unsigned *wait_count_before)
{
    *wait_count_before = atomic_load(&abandoned_wait_count);
    atomic_fetch_add(&captured_launch_count, 1);
    for (bool must_wait = true; must_wait && atomic_load(&capture_end_count) > 0;) {
        atomic_fetch_sub(&captured_launch_count, 1);
        must_wait = wait_for_none(&capture_end_count);
        atomic_fetch_add(&captured_launch_count, 1);
    }
    if (stream_is_capturing(stream))
        return true;
    atomic_fetch_sub(&captured_launch_count, 1);
    return false;
}

bool recording_ends(stream_t stream, unsigned wait_count_before)
{
    bool is_recorded = atomic_load(&abandoned_wait_count) == wait_count_before || stream_is_capturing(stream);
    atomic_fetch_sub(&captured_launch_count, 1);
    return is_recorded;
}

void capture_end_begins(void)
{
    atomic_fetch_add(&capture_end_count, 1);
    wait_for_none(&captured_launch_count);
}

void capture_end_over(void)
{
    atomic_fetch_sub(&capture_end_count, 1);
}
