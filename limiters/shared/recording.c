/* Launches that are captured, and ends of captures (recording.h). */
#include "recording.h"

#include "governors.h"

/* Neither waits for the other for longer: a signal handler may end the capture of the launch that it interrupts. */
#define WAITED_NS (50 * MS)

/* Launches that are captured, and calls that end captures. */
static atomic_uint recording, ending;

void recording_after_fork(void)
{
    atomic_store(&recording, 0);
    atomic_store(&ending, 0);
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
