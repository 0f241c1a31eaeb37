/* The governor: keeps one process's use of one device to its grant's share, in time slices.
 *
 * A share s is exclusive time slices on the device whose wall time adds up to s of the time. Launches run freely while
 * the gate is open; a thread of ours opens and closes it, waits for what was launched, and charges the wall time of the
 * time slice, which is the device's time as long as the time slice is exclusive. What takes too long to wait for is
 * charged until it is done, as a part of the wall time where others have work in flight, too. The thread starts at the
 * first launch that is limited.
 */
#ifndef HETERO_GOVERNOR_H
#define HETERO_GOVERNOR_H

#include "governor_state.h"

/* A governor with nothing running; NULL when there is no memory, or its files cannot be opened. Never freed.
 * `directory` stays the caller's. */
struct governor *governor_new(const struct engine *engine, const struct hetero_grant_device *terms,
                              struct hetero_region_device *account, const char *directory, unsigned device);

/* Before it is used: what the processes of the grant agree on where it is a gang, and its accounts of all its `count`
 * devices. */
void governor_share(struct governor *governor, struct hetero_region_gang *gang, struct hetero_region_device *devices,
                    unsigned device, unsigned count);

/* At exit: no governor calls its engine any more, and launchers are held to the share without it (gate.h). */
void governor_retire(struct governor *governor);

/* In a child after fork: the child gets a governor of its own; this one only closes its descriptors. */
void governor_after_fork(struct governor *governor);

/* What the thread does first. */
void governor_begin(struct governor *governor);

/* One round of the thread: out of debt, take the time slice, run it, give it up. For the thread and the unit tests. */
void governor_round(struct governor *governor);

#endif
