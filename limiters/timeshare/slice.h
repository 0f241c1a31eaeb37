/* Whose time slice it is on a device: locks in the kernel, shared by all tenants of the device.
 *
 * Some bytes of a file are locked, through open file descriptions, and never read or written:
 *   +0  exclusively by the low-priority grant that runs on the device
 *   +1  shared by the low-priority grants that wait for it
 *   +2  shared by the high-priority grants that wait for it or run: all others make way
 *   +3  shared by the high-priority grants that use the device these days
 *   +4  exclusively by the high-priority grant that runs
 *   +5  to +12, shared: one byte for every ten milliseconds that a grant which wants the device is owed
 *   +13 exclusively by the low-priority grant that runs, once little of what it launched is left to be done
 * and of the grant's own file:
 *   +14 shared by the processes of the grant that want the device
 *   +15 to +30, shared: the first by those that have waited for 10 ms, each other for 1.7 times the one before
 * So one of each kind may run at the same time, but only until the one of low priority has drained: what it has in
 * flight delays the other by less than waiting for it, and being woken, would.
 *
 * A killed holder or waiter loses its locks with its descriptors: nothing to clean up, nothing to corrupt. One that
 * lives and does not give the time slice up (stopped, or hostile) is waited for so long and no longer: after that its
 * co-tenants run beside it until it does.
 */
#ifndef HETERO_SLICE_H
#define HETERO_SLICE_H

#include <stdbool.h>
#include <stdint.h>

/* How long one is waited for who has the time slice: ten tenants that each use up a time slice and the time to drain it. */
#define SLICE_PATIENCE_NS INT64_C(1000000000)

struct slice {
    int file;       /* -1: no lock could be had, and the device is not shared in time slices */
    int at;         /* the first of the bytes */
    int own_file;   /* GRANT_DIR/usage, which may be the same; -1: the grant's processes do not see each other want */
    int own_at;
    bool announced; /* as of high priority */
    unsigned owed;  /* of slice_owe */
    unsigned waited; /* of slice_waits */
    int64_t waits_ns;  /* since when; 0: it does not */
    int64_t deferring_ns; /* since when another process of the grant might take the time slice, and does not; 0: none */
    bool high;      /* how the time slice was asked for */
    bool ours;
    bool late; /* it was waited for in vain: until it is to be had again, the owner goes without */
};

/* The time slice of the grant's device `device`: GRANT_DIR/time slice.<device>, or, when the node made none because nobody else
 * can hold the device, bytes of GRANT_DIR/usage, which keep the grant's own processes apart. */
void slice_open(struct slice *slice, const char *directory, unsigned device);
void slice_close(struct slice *slice);

/* Tell the others, or no longer, that we are of high priority: they then keep little in flight. */
void slice_announce(struct slice *slice, bool high);

/* Tell the others how much device time we are owed, in steps; more than all of them is all of them. It fades as it
 * grows (budget.h): at eight steps as fast as hand-overs take time away from the worst of neighbours. One that lies
 * about it can so cost its neighbours three and a half points of the device and no more. */
#define SLICE_STEP_NS INT64_C(10000000)
#define SLICE_STEPS   8u
void slice_owe(struct slice *slice, int64_t ns);

/* Whether somebody else is owed more, by a step or so. */
bool slice_owed_more(const struct slice *slice);

/* Tell the grant's other processes that we want the device, or no longer; and whether one of them does. */
void slice_want(const struct slice *slice, bool want);
bool slice_wanted_by_siblings(const struct slice *slice);

/* From the first call on we wait for the time slice, until one that says no longer: the grant's other processes are told for
 * how long, and let go first who has waited for longest. */
void slice_waits(struct slice *slice, bool waits);

/* Wait for the time slice, a second at most: the longest that honest neighbours keep it together is less. A low-priority
 * waiter lets every high-priority one go first. `soon(whom)`, unless NULL, is called when the time slice is about to be free,
 * for the launchers to be awake by then. */
void slice_take(struct slice *slice, bool high, void (*soon)(void *whom), void *whom);

/* Of low priority, with the time slice: tell those who wait that it is about to be free. */
void slice_ends(const struct slice *slice);

/* Take the time slice if nobody holds it or waits for it, and no other process of the grant is to go first. */
bool slice_try(struct slice *slice, bool high);

/* Give the time slice up; those who waited get a moment to take it before the caller goes on. */
void slice_give(struct slice *slice);

/* Whether somebody else runs; for one who does not. */
bool slice_held(const struct slice *slice);

/* For a high-priority grant that runs: whether one of low priority still drains; for that one: whether it does so. */
bool slice_drains(const struct slice *slice);
bool slice_yields(const struct slice *slice);

/* Whether somebody else waits; and whether one of high priority does, or runs. */
bool slice_wanted(const struct slice *slice);
bool slice_claimed(const struct slice *slice);

/* Whether somebody else is of high priority. */
bool slice_beside_high(const struct slice *slice);

#endif
