/* How an H200 (driver 580) tells its power; docs/notes/limiter.md has the measurements. */
#ifndef HETERO_TESTS_H200_H
#define HETERO_TESTS_H200_H

#include "../../../limiters/timeshare/power.h"

#include <string.h>

#define IDLE_MW  121000u
#define LIMIT_MW 700000u

/* One millisecond, in which it drew so much above idle on average: what there is goes through a low-pass filter, and
 * every 20 ms a sample is kept, with a stamp that is late. */
static inline void h200_meter(struct power_reading *kept, double *filtered_mw, double drawn_mw, uint64_t ms,
                              uint64_t late_ns)
{
    *filtered_mw += 0.0769 * (drawn_mw - *filtered_mw);
    if (ms % 20 != 7)
        return;
    if (kept->sample_count == POWER_SAMPLES)
        memmove(kept->samples, kept->samples + 1, --kept->sample_count * sizeof *kept->samples);
    kept->samples[kept->sample_count].at_ns = ms * 1000000 + late_ns;
    kept->samples[kept->sample_count++].mw = IDLE_MW + (uint32_t)*filtered_mw;
}

#endif
