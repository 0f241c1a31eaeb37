/* What a pause costs a program: after one it launches slower until its caches are warm, which it never has to do again
 * without a share. Measured on an H200: decoders lose 0.4 to 0.9 ms of a time slice of 10 to 20 ms, whether a token
 * takes 1.7 ms or 5.2.
 *
 * The loss is fitted to whole time slices of many lengths: their launches grow with the time they take, along a line
 * that meets zero launches where the loss ends. What that line says of the last time slices is not charged, if they
 * are on a line at all: a program whose launches are of all sizes gives no line. A program may feign the loss; at most
 * a twenty-fifth of the time slice is believed.
 *
 * The launches a millisecond of a whole time slice, loss included, tell a program's speed beside one neighbour against
 * that beside another (power.h).
 */
#ifndef HETERO_PACE_H
#define HETERO_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_TIME_SLICES 64   /* the line is through about so many */
#define PACE_LINE        0.85 /* of the launches' variance, what it has to explain */
#define PACE_BELIEVED    25   /* a part of the time slice */
#define PACE_RECENT      16   /* time slices that the rate is of: it follows a change of neighbours soon */
#define PACE_ERROR       0.03 /* standard error of a rate that is known */

struct pace {
    double lost_ms;         /* what a pause costs, as far as is known */
    double launches_per_ms; /* launches a millisecond of the last time slices, whole; 0: not known */
    double recent_ms, recent_launches;
    double slices, ms, launches, ms_ms, ms_launches, launches_launches; /* sums, the older the fainter */
};

/* A time slice has ended in which a program was busy from its first launch until the device had done all of its
 * `launch_count` launches. Returns what of it is not charged. */
static inline uint64_t pace_end(struct pace *pace, uint64_t took_ns, uint32_t launch_count)
{
    double ms = (double)took_ns / 1e6, launches = launch_count, kept_part = 1 - 1.0 / PACE_TIME_SLICES;
    pace->slices = kept_part * pace->slices + 1;
    pace->ms = kept_part * pace->ms + ms;
    pace->launches = kept_part * pace->launches + launches;
    pace->ms_ms = kept_part * pace->ms_ms + ms * ms;
    pace->ms_launches = kept_part * pace->ms_launches + ms * launches;
    pace->launches_launches = kept_part * pace->launches_launches + launches * launches;
    pace->recent_ms = (1 - 1.0 / PACE_RECENT) * pace->recent_ms + ms;
    pace->recent_launches = (1 - 1.0 / PACE_RECENT) * pace->recent_launches + launches;

    double mean_ms = pace->ms / pace->slices, mean_launches = pace->launches / pace->slices;
    double spread_ms = pace->ms_ms / pace->slices - mean_ms * mean_ms;
    double spread_launches = pace->launches_launches / pace->slices - mean_launches * mean_launches;
    double together = pace->ms_launches / pace->slices - mean_ms * mean_launches;
    bool on_line = pace->slices >= PACE_TIME_SLICES / 2.0 && together > 0 &&
                   together * together >= PACE_LINE * spread_ms * spread_launches;
    double lost_ms = on_line ? mean_ms - mean_launches * spread_ms / together : 0, most_ms = ms / PACE_BELIEVED;
    pace->lost_ms = lost_ms > 0 ? lost_ms : 0;

    /* How far off they are a line through zero, in squares of launches. */
    double launches_per_ms = mean_launches / mean_ms, error = PACE_ERROR * mean_launches;
    double off = spread_launches - 2 * launches_per_ms * together + launches_per_ms * launches_per_ms * spread_ms;
    bool even = pace->slices >= PACE_RECENT && off <= PACE_RECENT * error * error;
    pace->launches_per_ms = even ? pace->recent_launches / pace->recent_ms : 0;
    return (uint64_t)((pace->lost_ms < most_ms ? pace->lost_ms : most_ms) * 1e6);
}

#endif
