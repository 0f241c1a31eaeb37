/* What a grant is given back that was charged for all of the device while a neighbour said for longer than it is
 * believed that a kernel of its own ran, too (pages.h).
 *
 * The driver gives each context turns, so a program launches about half as fast then. Once the neighbour has stopped
 * saying so, the program's rate tells whether that was true: a page that lies slows nobody down.
 */
#ifndef HETERO_DOUBT_H
#define HETERO_DOUBT_H

#include "pace.h"

/* So many whole time slices later the rate is of those alone; and so many times what it was it is at least. */
#define DOUBT_TIME_SLICES (2 * PACE_RECENT)
#define DOUBT_TIMES       1.5

struct doubt {
    uint64_t charged_ns;             /* too much, if the neighbour ran */
    double doubted_ms, launch_count; /* for so long a time slice was open meanwhile, in which so many were made */
    unsigned whole_slice_count;      /* whole time slices since */
};

/* For so long a neighbour said so while the program launched so much. */
static inline void doubt_add(struct doubt *doubt, uint64_t doubted_ns, uint32_t launch_count)
{
    doubt->doubted_ms += (double)doubted_ns / 1e6;
    doubt->launch_count += launch_count;
    doubt->whole_slice_count = 0;
}

/* A whole time slice has ended in which none did. Returns what is given back. */
static inline uint64_t doubt_end(struct doubt *doubt, const struct pace *pace)
{
    if (doubt->doubted_ms <= 0 || ++doubt->whole_slice_count < DOUBT_TIME_SLICES || pace->launches_per_ms <= 0)
        return 0;
    uint64_t back_ns = pace->launches_per_ms * doubt->doubted_ms >= DOUBT_TIMES * doubt->launch_count
                           ? doubt->charged_ns
                           : 0;
    *doubt = (struct doubt){0};
    return back_ns;
}

#endif
