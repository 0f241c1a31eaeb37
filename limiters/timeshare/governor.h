/* The governor: keeps one process's use of one device to its grant's share, in time slices.
 *
 * A share s is exclusive time slices on the device whose wall time adds up to s of the time. Launches run freely while the
 * gate is open; a thread of ours opens and closes it, waits for what was launched, and charges the wall time of the
 * time slice, which inside an exclusive time slice is the device's time. The thread starts at the first launch that is limited.
 */
#ifndef HETERO_GOVERNOR_H
#define HETERO_GOVERNOR_H

#include "engine.h"
#include "../core/grant.h"
#include "tracked_streams.h"
#include "pace.h"
#include "power.h"
#include "../core/region.h"
#include "slice.h"

#include <pthread.h>

#define GATE_FENCES 8u

struct governor {
    /* Written before the governor is published, then constant. */
    const struct engine *engine;
    const struct hetero_grant_device *terms;
    struct hetero_region_device *account;
    struct slice slice;

    _Atomic uint32_t gate;      /* futex: GATE_OPEN or GATE_CLOSED; written by the thread */
    _Atomic uint32_t waiting;   /* futex: launchers at the closed gate */
    _Atomic uint64_t traffic;   /* launches let in since the start << 32 | launchers between enter and leave */
    _Atomic uint64_t first_ns;  /* when the time slice's first launch came; 0: not yet */
    _Atomic uint32_t backlog;   /* fences set and not yet passed */
    _Atomic uint32_t stride;    /* launches between two fences */
    _Atomic uint32_t fenced;    /* the launch count at the last fence */
    _Atomic bool low_latency;         /* a high-priority grant may want the device at any time; written by the thread */

    pthread_mutex_t lock; /* guards the rest, and is held around every call of the engine but now, pause and power */
    bool started;
    uint64_t logged_ns; /* when it was last said that the thread could not be started; 0: never */
    struct tracked_streams tracked_streams;
    struct {
        void *fence;
        struct tracked_stream *tracked_stream;
        unsigned generation;
    } fences[GATE_FENCES];
    unsigned oldest;
    uint64_t timed_ns; /* a moment of this time slice; 0: there was no fence in it yet */
    uint32_t passed;   /* fences that passed since then */

    _Atomic uint32_t watch;       /* futex: who asks for the card's power, gate.h */
    struct power_reading reading; /* what that one was told */

    /* The thread's own. */
    struct hetero_region_device own; /* the account of this process alone, where the tenant's other ones cannot write */
    uint64_t asked_ns;
    uint32_t launches_seen;
    uint32_t core; /* what `power` was learnt at */
    struct power power;
    struct pace pace;
    uint32_t paced_at;  /* the charge rate when it began, unity or more */
    uint64_t waived_ns; /* of what was not charged yet */
    uint64_t rng;
};

/* A governor with nothing running; NULL when there is no memory. Never freed. */
struct governor *governor_new(const struct engine *engine, const struct hetero_grant_device *terms,
                              struct hetero_region_device *account, const char *directory, unsigned device);

/* Wait until a launch may go ahead. False: the limit was lifted meanwhile, launch without leaving. */
bool governor_enter(struct governor *governor);

/* The launch was made (or failed) into `stream`. */
void governor_leave(struct governor *governor, const struct stream_key *stream);

/* Before a stream starts or joins a capture: from then on it must not be marked. */
void governor_before_capture(struct governor *governor, const struct stream_key *stream);

/* Before a stream or a context is destroyed. */
void governor_before_stream_ends(struct governor *governor, const struct stream_key *stream);
void governor_before_context_ends(struct governor *governor, void *context);

/* At exit: every gate opens, and no governor calls its engine any more. */
void governor_retire(struct governor *governor);

/* In a child after fork: the child gets a governor of its own; this one only lets go of its descriptor. */
void governor_after_fork(struct governor *governor);

/* What the thread does first. */
void governor_begin(struct governor *governor);

/* One round of the thread: out of debt, take the time slice, run it, give it up. For the thread and for the unit tests. */
void governor_round(struct governor *governor);

#endif
