/* Whose time slice it is on a device: decided by each tenant for itself, from the board and the pages (pages.h).
 *
 * One grant of each priority may run at the same time, but only until the one of low priority has drained. Waiting for
 * that, and being woken, would take the other longer than sharing the device with what is in flight.
 *
 * The processes of one grant (siblings) agree by locks on bytes of the grant's own file GRANT_DIR/usage, through open
 * file descriptions; the bytes are never read or written:
 *   +0  exclusively by the process that has the grant's lead: it enters, or has a time slice
 *   +1  shared by those that want the device
 *   +2  shared by those that wait for the time slice, out of debt
 *   +3 to +18, shared: the first by those that have waited for 10 ms, each other for 1.7 times the one before
 *   +19 to +23, exclusively: each by a process with work in flight; one that finds none does not count
 *
 * A killed process loses its locks with its descriptors, and its page is silent: there is nothing to clean up. One that
 * lives and does not give the time slice up (hostile, or with work that does not end) is waited for so long and no
 * longer. After that its co-tenants run beside it until it does.
 */
#ifndef HETERO_TIME_SLICE_H
#define HETERO_TIME_SLICE_H

#include "rows.h"

/* How long one that is out of debt is kept waiting: for the time slice, and before that for those who are owed more. */
#define TIME_SLICE_PATIENCE_NS INT64_C(300000000)
#define TIME_SLICE_DEFERS_NS   INT64_C(100000000)

/* That the grant owes more than a second, which siblings are told by locks. */
struct owing {
    bool owes_much;
    int claimed_byte;       /* which of the bytes that say that, with work of ours in flight, is ours; 0: none */
    void *keeper_mapping;   /* the mapping that keeps it locked, whatever descriptors the program closes */
    int64_t asked_at_ns;    /* when it was last asked whether siblings have one, */
    bool siblings_owe_much; /* and whether one had */
};

struct time_slice {
    struct pages pages;
    const char *directory; /* the caller's */
    unsigned device;
    struct descriptor usage_file; /* GRANT_DIR/usage; looked at before it is locked: the program may have closed it */
    int first_byte;               /* the first of its bytes */
    unsigned owed_steps;          /* steps advertised by time_slice_owe */
    unsigned waited_steps;        /* steps advertised by time_slice_waits */
    int64_t waits_since_ns;       /* since when it waits; 0: it does not */
    int64_t
        defers_since_ns; /* since when a sibling that waited longer might take the time slice and does not; 0: none */
    int work_byte;       /* which of the bytes that say that our work is in flight is ours; 0: none */
    int64_t siblings_counted_at_ns; /* when siblings' were counted last */
    struct owing owing;
    bool is_high_priority; /* the priority with which it was asked for */
    bool has_lead;         /* no sibling enters, or has a time slice */
    bool is_ours;
    bool has_joined;   /* we run in a sibling's */
    bool is_late;      /* it was waited for in vain: until it can be had again, the owner runs without */
    uint64_t drain_ns; /* how long what the owner has in flight takes: so long before a gang's row it ends */
};

/* Called while a time slice is waited for, at each look; `soon`: it is about to be free. Whether the waiter joins the
 * sibling that has it, and waits no longer. */
struct time_slice_waiter {
    bool (*look)(void *owner, bool soon);
    void *owner;
};

/* Open what the grant has for its device `device`; `directory` stays the caller's. False: it cannot be opened. */
bool time_slice_open(struct time_slice *time_slice, const char *directory, unsigned device);
void time_slice_close(struct time_slice *time_slice);

/* Open again what the program closed meanwhile, and the locks with it. False: it cannot be opened. */
bool time_slice_renew(struct time_slice *time_slice);

/* Advertise that we are of high priority: the others then keep little in flight for some seconds. */
void time_slice_announce(struct time_slice *time_slice);

/* Advertise how much device time we are owed, in steps; it saturates at TIME_SLICE_STEPS. What is owed fades as it
 * grows (budget.h): at eight steps as fast as hand-overs take time away from the worst of neighbours. A tenant that
 * lies about it costs its neighbours three and a half points of the device at most. */
#define TIME_SLICE_STEP_NS INT64_C(10000000)
#define TIME_SLICE_STEPS   8u
void time_slice_owe(struct time_slice *time_slice, int64_t owed_ns);

/* Whether somebody else who asks is owed more, by a step or so. */
bool time_slice_owed_more(struct time_slice *time_slice);

/* Whether somebody else who asks, runs or has work in flight is owed a few steps. */
bool time_slice_owed(struct time_slice *time_slice);

/* Advertise to siblings that we want the device, or no longer; and whether one of them does. */
void time_slice_want(const struct time_slice *time_slice, bool want);
bool time_slice_wanted_by_siblings(const struct time_slice *time_slice);

/* From the first call with `waits` on we wait for the time slice, until a call without. How long is advertised to
 * siblings, which defer to the one that has waited longest. */
void time_slice_waits(struct time_slice *time_slice, bool waits);

/* Wait for the time slice, TIME_SLICE_PATIENCE_NS at most. A waiter of low priority lets all of high priority go first.
 * `waiter` may be NULL. */
void time_slice_take(struct time_slice *time_slice, bool high, const struct time_slice_waiter *waiter);

/* With the time slice: advertise to those who wait that it is about to be free. */
void time_slice_ends(struct time_slice *time_slice);

/* Take the time slice if nobody holds it or waits for it, and no sibling is to go first. */
bool time_slice_try(struct time_slice *time_slice, bool high);

/* Run in the time slice of a sibling, until it is given up; what that sibling says: PAGE_IDLE if it has none. */
void time_slice_join(struct time_slice *time_slice);
enum page_state time_slice_of_sibling(const struct time_slice *time_slice);

/* With the time slice: whoever joined is to stop; and how many siblings have work in flight. */
void time_slice_ends_for_siblings(struct time_slice *time_slice);
unsigned time_slice_siblings(struct time_slice *time_slice);

/* Give the time slice up; those who waited get a moment to take it before the caller goes on. */
void time_slice_give(struct time_slice *time_slice);

/* Whether somebody else runs; for one who does not. And whether one does whose time is not lent to it. */
bool time_slice_held(struct time_slice *time_slice);
bool time_slice_held_by_right(struct time_slice *time_slice);

/* For one of low priority that runs: whether one of high priority keeps it from going on. */
bool time_slice_yields(struct time_slice *time_slice);

/* For one of low priority: whether a row of a gang that is there begins before what we have in flight is done, or has
 * begun. */
bool time_slice_row_comes(struct time_slice *time_slice);

/* For a gang: whether another grant wants the device or runs, whenever it may; whether one that is not of high priority
 * runs, and whether one that is does. */
bool time_slice_sought(struct time_slice *time_slice);
bool time_slice_held_by_high(struct time_slice *time_slice);
bool time_slice_held_by_low(struct time_slice *time_slice);

/* Whether another grant wants the device, runs, or has work on it. */
bool time_slice_contended(struct time_slice *time_slice);

/* Whether somebody else waits; and whether one of high priority does, or runs. */
bool time_slice_wanted(struct time_slice *time_slice);
bool time_slice_claimed(struct time_slice *time_slice);

/* Whether somebody else is of high priority, and was there in the last seconds. */
bool time_slice_beside_high(struct time_slice *time_slice);

/* Say whether work of ours is in flight; how many others have work in flight, of other grants alone or, as far as our
 * own page can be believed, of all; whether some outlasts its time slice. */
void time_slice_busy(struct time_slice *time_slice, bool busy);
unsigned time_slice_others(struct time_slice *time_slice);
unsigned time_slice_beside(struct time_slice *time_slice);
bool time_slice_overrun(struct time_slice *time_slice);

/* Whether one of those is a sibling, or of a grant whose time is not lent to it. */
bool time_slice_beside_another_by_right(struct time_slice *time_slice);

/* The grant owes others more than a second, or no longer. While work of ours is in flight then, siblings do not launch:
 * a lock says so, which only the end of this process or of that work takes away. And whether one of them says so. */
void time_slice_owes_much(struct time_slice *time_slice, bool owes);
bool time_slice_owed_by_siblings(struct time_slice *time_slice);

/* How many more others say that they have, for longer than they are believed. */
unsigned time_slice_doubted(struct time_slice *time_slice);

/* Say that device time of ours was used without a time slice; and how much neighbours were believed to have used so
 * since the start. */
void time_slice_say_light(struct time_slice *time_slice, uint64_t used_ns);
uint64_t time_slice_light(struct time_slice *time_slice);

/* With the time slice: ask those who use the device without one to keep away for a moment, or no longer; and whether
 * another that has it asks. */
void time_slice_measure(struct time_slice *time_slice, bool measures);
bool time_slice_measured(struct time_slice *time_slice);

/* How many of them did so of late. */
unsigned time_slice_lit(struct time_slice *time_slice);

#endif
