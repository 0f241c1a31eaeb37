/* Whose turn it is on a device: locks in the kernel, shared by all tenants of the device.
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
 * lives and does not give the turn up (stopped, or hostile) is waited for so long and no longer: after that its
 * card-mates run beside it until it does.
 */
#ifndef HETERO_TURN_H
#define HETERO_TURN_H

#include <stdbool.h>
#include <stdint.h>

/* How long one is waited for who has the turn: ten tenants that each use up a turn and the time to drain it. */
#define TURN_PATIENCE_NS INT64_C(1000000000)

struct turn {
    int file;       /* -1: no lock could be had, and the device is not shared in turns */
    int at;         /* the first of the bytes */
    int own_file;   /* GRANT_DIR/usage, which may be the same; -1: the grant's processes do not see each other want */
    int own_at;
    bool announced; /* as of high priority */
    unsigned owed;  /* of turn_owe */
    unsigned waited; /* of turn_waits */
    int64_t waits_ns;  /* since when; 0: it does not */
    int64_t polite_ns; /* since when another process of the grant might take the turn, and does not; 0: none */
    bool high;      /* how the turn was asked for */
    bool ours;
    bool late; /* it was waited for in vain: until it is to be had again, the owner goes without */
};

/* The turn of the grant's device `device`: GRANT_DIR/turn.<device>, or, when the node made none because nobody else
 * can hold the device, bytes of GRANT_DIR/usage, which keep the grant's own processes apart. */
void turn_open(struct turn *turn, const char *directory, unsigned device);
void turn_close(struct turn *turn);

/* Tell the others, or no longer, that we are of high priority: they then keep little in flight. */
void turn_announce(struct turn *turn, bool high);

/* Tell the others how much device time we are owed, in steps; more than all of them is all of them. It fades as it
 * grows (budget.h): at eight steps as fast as hand-overs take time away from the worst of neighbours. One that lies
 * about it can so cost its neighbours three and a half points of the device and no more. */
#define TURN_STEP_NS INT64_C(10000000)
#define TURN_STEPS   8u
void turn_owe(struct turn *turn, int64_t ns);

/* Whether somebody else is owed more, by a step or so. */
bool turn_owed_more(const struct turn *turn);

/* Tell the grant's other processes that we want the device, or no longer; and whether one of them does. */
void turn_want(const struct turn *turn, bool want);
bool turn_wanted_by_kin(const struct turn *turn);

/* From the first call on we wait for the turn, until one that says no longer: the grant's other processes are told for
 * how long, and let go first who has waited for longest. */
void turn_waits(struct turn *turn, bool waits);

/* Wait for the turn, a second at most: the longest that honest neighbours keep it together is less. A low-priority
 * waiter lets every high-priority one go first. `soon(whom)`, unless NULL, is called when the turn is about to be free,
 * for the launchers to be awake by then. */
void turn_take(struct turn *turn, bool high, void (*soon)(void *whom), void *whom);

/* Of low priority, with the turn: tell those who wait that it is about to be free. */
void turn_ends(const struct turn *turn);

/* Take the turn if nobody holds it or waits for it, and no other process of the grant is to go first. */
bool turn_try(struct turn *turn, bool high);

/* Give the turn up; those who waited get a moment to take it before the caller goes on. */
void turn_give(struct turn *turn);

/* Whether somebody else runs; for one who does not. */
bool turn_held(const struct turn *turn);

/* For a high-priority grant that runs: whether one of low priority still drains; for that one: whether it does so. */
bool turn_drains(const struct turn *turn);
bool turn_yields(const struct turn *turn);

/* Whether somebody else waits; and whether one of high priority does, or runs. */
bool turn_wanted(const struct turn *turn);
bool turn_claimed(const struct turn *turn);

/* Whether somebody else is of high priority. */
bool turn_beside_high(const struct turn *turn);

#endif
