/* What a pause costs a program: after one it launches slower until its caches are warm, which without a share it never
 * has to be again. Seen on an H200: a decoder of 1.7 ms a token loses 0.7 ms of a turn of 20 ms.
 *
 * The loss is told from the launches: so many fewer came in a turn's first two milliseconds than in as long later on.
 * Its mean over many turns is not charged. A program may feign it, by launching slowly first; it is believed up to a
 * twenty-fifth of the turn.
 */
#ifndef HETERO_PACE_H
#define HETERO_PACE_H

#include <stdint.h>

#define PACE_COLD_NS  INT64_C(2000000)
#define PACE_TURN_NS  (4 * PACE_COLD_NS) /* a shorter turn does not tell */
#define PACE_TURNS    32                /* the mean is over about so many */
#define PACE_BELIEVED 25                 /* a part of the turn */

struct pace {
    uint64_t first_ns, warm_ns; /* the turn's first launch; when its first part was over, 0: not yet */
    uint32_t launches;          /* before the turn, and from warm_ns on: until then */
    int64_t cold;               /* launches of the first part */
    int64_t lost_ns;            /* mean; less than none when a turn starts faster than it goes on: a queue fills */
};

static inline void pace_begin(struct pace *pace, uint64_t first_ns, uint32_t launches)
{
    pace->first_ns = first_ns;
    pace->warm_ns = 0;
    pace->launches = launches;
}

/* `launches` so far. */
static inline void pace_look(struct pace *pace, uint64_t now_ns, uint32_t launches)
{
    if (pace->warm_ns != 0 || (int64_t)(now_ns - pace->first_ns) < PACE_COLD_NS)
        return;
    pace->warm_ns = now_ns;
    pace->cold = (uint32_t)(launches - pace->launches);
    pace->launches = launches;
}

/* What of the turn is not charged. */
static inline uint64_t pace_end(struct pace *pace, uint64_t now_ns, uint32_t launches)
{
    int64_t cold_ns = (int64_t)(pace->warm_ns - pace->first_ns), warm_ns = (int64_t)(now_ns - pace->warm_ns);
    int64_t warm = (uint32_t)(launches - pace->launches);
    if (pace->warm_ns == 0 || cold_ns + warm_ns < PACE_TURN_NS || warm == 0)
        return 0;
    int64_t lost_ns = cold_ns - pace->cold * warm_ns / warm;
    if (lost_ns < -cold_ns)
        lost_ns = -cold_ns;
    pace->lost_ns += (lost_ns - pace->lost_ns) / PACE_TURNS;
    int64_t most_ns = (cold_ns + warm_ns) / PACE_BELIEVED;
    return pace->lost_ns < 0 ? 0 : (uint64_t)(pace->lost_ns < most_ns ? pace->lost_ns : most_ns);
}

#endif
