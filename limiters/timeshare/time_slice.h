/* Whose time slice it is on a device: locks in the kernel, shared by all tenants of the device.
 *
 * Some bytes of a file are locked, through open file descriptions, and never read or written:
 *   +0  exclusively by the low-priority grant that runs on the device
 *   +1  shared by the low-priority grants that wait for it
 *   +2  shared by the high-priority grants that wait for it or run: a claim, to which low priority yields
 *   +3  shared by the high-priority grants that have used the device in the last seconds
 *   +4  exclusively by the high-priority grant that runs
 *   +5  to +12, shared: one byte for every ten milliseconds that a grant which wants the device is owed
 *   +13 exclusively by the low-priority grant that runs, once little of what it launched is left to be done
 * and of the grant's own file:
 *   +14 shared by the processes of the grant (siblings) that want the device
 *   +15 to +30, shared: the first by those that have waited for 10 ms, each other for 1.7 times the one before
 *
 * One grant of each priority may run at the same time, but only until the one of low priority has drained. Waiting for
 * that, and being woken, would take the other longer than sharing the device with what is in flight.
 *
 * A killed holder or waiter loses its locks with its descriptors: there is nothing to clean up. One that lives and does
 * not give the time slice up (stopped, or hostile) is waited for so long and no longer. After that its co-tenants run
 * beside it until it does.
 */
#ifndef HETERO_TIME_SLICE_H
#define HETERO_TIME_SLICE_H

#include "../core/descriptor.h"

#include <stdbool.h>
#include <stdint.h>

/* How long a holder is waited for: ten tenants that each use up a time slice and the time to drain it. */
#define TIME_SLICE_PATIENCE_NS INT64_C(1000000000)

struct time_slice {
    const char *directory; /* the caller's */
    unsigned device;
    struct descriptor file; /* each is looked at before it is locked: the program may have closed it */
    int at;                 /* the first of the bytes */
    struct descriptor own;  /* GRANT_DIR/usage, which may be the same file */
    int own_at;
    bool announced;       /* as of high priority */
    unsigned owed;        /* steps advertised by time_slice_owe */
    unsigned waited;      /* steps advertised by time_slice_waits */
    int64_t waits_ns;     /* since when it waits; 0: it does not */
    int64_t deferring_ns; /* since when a sibling that waited longer might take the time slice and does not; 0: none */
    bool high;            /* the priority with which it was asked for */
    bool ours;
    bool late; /* it was waited for in vain: until it can be had again, the owner runs without */
};

/* Open the locks of the grant's device `device`: GRANT_DIR/time_slice.<device>, or, when the node made no such file
 * because nobody else can hold the device, bytes of GRANT_DIR/usage, which keep siblings apart. */
bool time_slice_open(struct time_slice *time_slice, const char *directory, unsigned device);

/* Open again what the program closed meanwhile, and the locks with it. False: it cannot be opened. */
bool time_slice_renew(struct time_slice *time_slice);
void time_slice_close(struct time_slice *time_slice);

/* Advertise, or no longer, that we are of high priority: the others then keep little in flight. */
void time_slice_announce(struct time_slice *time_slice, bool high);

/* Advertise how much device time we are owed, in steps; it saturates at TIME_SLICE_STEPS. What is owed fades as it
 * grows (budget.h): at eight steps as fast as hand-overs take time away from the worst of neighbours. A tenant that
 * lies about it costs its neighbours three and a half points of the device at most. */
#define TIME_SLICE_STEP_NS INT64_C(10000000)
#define TIME_SLICE_STEPS   8u
void time_slice_owe(struct time_slice *time_slice, int64_t ns);

/* Whether somebody else is owed more, by a step or so. */
bool time_slice_owed_more(const struct time_slice *time_slice);

/* Advertise to siblings that we want the device, or no longer; and whether one of them does. */
void time_slice_want(const struct time_slice *time_slice, bool want);
bool time_slice_wanted_by_siblings(const struct time_slice *time_slice);

/* From the first call with `waits` on we wait for the time slice, until a call without. How long is advertised to
 * siblings, which defer to the one that has waited longest. */
void time_slice_waits(struct time_slice *time_slice, bool waits);

/* Wait for the time slice, a second at most: the longest that ten neighbours keep it together is less. A waiter of
 * low priority lets all of high priority go first. `soon(owner)`, unless NULL, is called when the time slice is
 * about to be free, for the launchers to be awake by then. */
void time_slice_take(struct time_slice *time_slice, bool high, void (*soon)(void *owner), void *owner);

/* Of low priority, with the time slice: advertise to those who wait that it is about to be free. */
void time_slice_ends(const struct time_slice *time_slice);

/* Take the time slice if nobody holds it or waits for it, and no sibling is to go first. */
bool time_slice_try(struct time_slice *time_slice, bool high);

/* Give the time slice up; those who waited get a moment to take it before the caller goes on. */
void time_slice_give(struct time_slice *time_slice);

/* Whether somebody else runs; for one who does not. */
bool time_slice_held(const struct time_slice *time_slice);

/* For a high-priority grant that runs: whether one of low priority still drains; for that one: whether it does so. */
bool time_slice_drains(const struct time_slice *time_slice);
bool time_slice_yields(const struct time_slice *time_slice);

/* Whether somebody else waits; and whether one of high priority does, or runs. */
bool time_slice_wanted(const struct time_slice *time_slice);
bool time_slice_claimed(const struct time_slice *time_slice);

/* Whether somebody else is of high priority. */
bool time_slice_beside_high(const struct time_slice *time_slice);

#endif
