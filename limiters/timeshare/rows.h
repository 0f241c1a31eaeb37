/* Rows: the part of each period of a common clock that is a gang's own, the same on all its devices (docs/decisions/
 * gangs.md). Root writes it on each device's board, so that no tenant can change it.
 *
 * The clock is CLOCK_REALTIME: no time namespace shifts it, and the nodes of a cluster agree on it. It tells where in a
 * period a moment is and nothing else; how long something takes is told by CLOCK_MONOTONIC.
 */
#ifndef HETERO_ROWS_H
#define HETERO_ROWS_H

#include "pages.h"

#define ROW_PERIOD_MOST_NS UINT64_C(1000000000)

static inline uint64_t wall_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Whether the grant of a board's row is a gang, with a row of its own in time. */
static inline bool row_is(const struct hetero_board_row *row)
{
    return row->length_ns > 0 && row->length_ns <= row->period_ns && row->period_ns <= ROW_PERIOD_MOST_NS;
}

/* Whether its user gave the row: then the gang may have more of it on other nodes. */
static inline bool row_is_by_hand(const struct hetero_board_row *row)
{
    return (row->gang_flags & HETERO_GANG_BY_HAND) != 0;
}

/* How long ago its row began last. */
static inline uint64_t row_position(const struct hetero_board_row *row, uint64_t wall_ns)
{
    uint64_t period_ns = row->period_ns;
    return (wall_ns % period_ns + period_ns - row->begin_ns % period_ns) % period_ns;
}

/* How much of the row is left; 0: it is not in it. And how long until the next begins. */
static inline uint64_t row_left(const struct hetero_board_row *row, uint64_t wall_ns)
{
    uint64_t position_ns = row_position(row, wall_ns);
    return position_ns < row->length_ns ? row->length_ns - position_ns : 0;
}

static inline uint64_t row_until_next(const struct hetero_board_row *row, uint64_t wall_ns)
{
    return row->period_ns - row_position(row, wall_ns);
}

#endif
