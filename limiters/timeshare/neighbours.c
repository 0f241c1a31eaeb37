/* What light neighbours use of the device while we are charged by the clock (neighbours.h). */
#include "neighbours.h"

/* What going over to light programs and back costs who has the device, in percent of what they say that they keep.
 * Measured on an H100, a prefill beside a decoder of small kernels: the decoder kept 26 % of its time slices from it by
 * its kernels and the gaps between them, and it had 59 % (2026-11-23), which is 56. */
#define LIGHT_LOST_PERCENT 56u

/* The driver goes over to light programs and back once in 2 ms at most, and loses up to 150 us
 * each time: so much of the time in percent, however much they say that they keep (15 % in that measurement, too). What
 * was not lost adds up for so long. */
#define LIGHT_SWITCHES_PERCENT 15u
#define LIGHT_SWITCHES_NS      (20 * MS)

/* Light programs say what they use when they launch it, which may be a step of milliseconds, and the device works for
 * it later: so much is kept for then. */
#define LIGHT_LEFT_NS (20 * MS)

uint64_t neighbours_begin(struct governor *governor)
{
    governor->lights.used_ns = time_slice_light(&governor->time_slice);
    return governor->lights.used_ns;
}

uint64_t neighbours_leave(struct governor *governor, uint64_t spent_ns)
{
    uint64_t light_ns = time_slice_light(&governor->time_slice), used_ns = light_ns - governor->lights.used_ns;
    governor->lights.used_ns = light_ns;
    uint64_t switches_ns = governor->lights.switch_loss_ns + spent_ns * LIGHT_SWITCHES_PERCENT / 100;
    switches_ns = switches_ns < LIGHT_SWITCHES_NS ? switches_ns : LIGHT_SWITCHES_NS;
    uint64_t lost_ns = used_ns * LIGHT_LOST_PERCENT / 100;
    lost_ns = lost_ns < switches_ns ? lost_ns : switches_ns;
    governor->lights.switch_loss_ns = switches_ns - lost_ns;
    uint64_t taken_ns = used_ns + governor->lights.unsubtracted_ns + lost_ns;
    uint64_t left_ns = taken_ns < spent_ns ? 0 : taken_ns - spent_ns;
    governor->lights.unsubtracted_ns = left_ns < LIGHT_LEFT_NS ? left_ns : LIGHT_LEFT_NS;
    return taken_ns < spent_ns ? spent_ns - taken_ns : 0;
}
