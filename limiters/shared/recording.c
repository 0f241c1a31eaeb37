/* Launches that are captured, and ends of captures (recording.h). */
#include "recording.h"

#include "governors.h"

/* Neither waits for the other for longer: a signal handler may end the capture of the launch that it interrupts. */
#define WAITED_NS (50 * MS)

/* Launches that are captured, and calls that end captures. */
static atomic_uint recording, ending;

static atomic_uint given_up; /* waits of either for the other */

void recording_after_fork(void)
{
    atomic_store(&recording, 0);
    atomic_store(&ending, 0);
}

static bool wait_for_none(atomic_uint *count)
{
    for (uint64_t since = driver_engine.now(); atomic_load(count) > 0; driver_engine.pause(US))
        if (driver_engine.now() - since > WAITED_NS) {
            atomic_fetch_add(&given_up, 1);
            return false;
        }
    return true;
}

bool recording_begins(stream_t stream, unsigned *seen)
{
    *seen = atomic_load(&given_up);
    atomic_fetch_add(&recording, 1);
    for (bool waits = true; waits && atomic_load(&ending) > 0;) {
        atomic_fetch_sub(&recording, 1);
        waits = wait_for_none(&ending);
        atomic_fetch_add(&recording, 1);
    }
    if (stream_capturing(stream))
        return true;
    atomic_fetch_sub(&recording, 1);
    return false;
}

bool recording_ends(stream_t stream, unsigned seen)
{
    bool recorded = atomic_load(&given_up) == seen || stream_capturing(stream);
    atomic_fetch_sub(&recording, 1);
    return recorded;
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
