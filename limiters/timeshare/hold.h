/* A stream that is held for a moment, to time what is launched into it meanwhile.
 *
 * A program that launches one small kernel after the other leaves the device idle between them, and fences tell only
 * that a launch is not done yet. Launches that have to wait for each other and then run in a row take as long as the
 * device works for them (docs/decisions/busy-time.md).
 *
 * The governor's thread asks for a hold. A launcher begins it before its launch, and those that follow count theirs.
 * The thread releases it without a call of the driver, so whatever waits for the stream inside the driver, with
 * whatever lock, goes on. A hold of a single launch is released behind it: so programs are timed that wait for each
 * launch, or launch into several streams. Only what is written with the gate's lock is written by launchers.
 *
 * A program can notice that its stream is held, and behave meanwhile. So some holds do not stall: one launch is timed
 * where it would run anyway. The time includes what the host takes to make the launch. Less that, it is a lower bound
 * of what the device works for it.
 */
#ifndef HETERO_HOLD_H
#define HETERO_HOLD_H

#include "engine.h"
#include "tracked_streams.h"

#include <stdatomic.h>

/* A hold ends with so many launches, after so long, or when none has come for so long. Each launch is stamped: of a
 * program that waits behind a long one, that would else not be timed. */
#define HOLD_LAUNCHES UINT32_C(16)
#define HOLD_BURST    UINT32_C(64) /* where it is to be of all launches between two pauses */
#define HOLD_MOST_NS  MS
#define HOLD_PAUSE_NS (100 * US)

/* Begins: a launcher calls the driver. On: launches are counted. Over: `stamped_launches` are timed. Spoiled: none are.
 */
enum hold_state { HOLD_NONE = 0, HOLD_ASKED, HOLD_BEGINS, HOLD_ON, HOLD_OVER, HOLD_SPOILED };

/* Graphs are told apart by their handle, in so many kinds: two that are alike there count as one. */
#define HOLD_GRAPH_KINDS 256u

/* What a hold is of: of all launches that are no graphs; of graphs; or of graphs of a kind that is not known. */
enum hold_of { HOLD_OF_KERNELS = 0, HOLD_OF_GRAPHS, HOLD_OF_UNKNOWN };

struct hold {
    const struct engine *engine;
    _Atomic uint32_t state;                          /* enum hold_state */
    _Atomic uint32_t launch_count;                   /* counted since it is on */
    _Atomic uint64_t begun_at_ns;                    /* when it began */
    _Atomic uint64_t last_launch_at_ns;              /* when the last launch was counted */
    _Atomic uint32_t skip_count;                     /* so many launches are made first */
    _Atomic uint32_t held_kind;                      /* enum hold_of */
    atomic_bool known_graph_kinds[HOLD_GRAPH_KINDS]; /* kinds of graphs that were held; written by the thread */
    _Atomic uint32_t last_graph_kind;                /* the kind of the last graph in it */
    atomic_bool is_releasing, is_released;           /* it is being released; it was */
    atomic_bool is_letting_go, has_let_go;           /* the thread lets go what is held while it begins; it did */

    /* Of launchers, with the gate's lock. */
    void *handle; /* the engine's; NULL: none was made yet */
    void *context;
    struct stream_key stream;
    uint32_t most_launches; /* launches in it; 0: to learn how long nothing takes */
    bool stalls_stream;
    uint32_t stamped_launches;
};

/* For the governor's thread, with the gate's lock: ask for a hold of so many launches, once `skip_count` others that it
 * may be of were made. */
void hold_ask(struct hold *hold, uint32_t most_launches, uint32_t skip_count, enum hold_of held_kind, bool stalls);

/* What the thread is about to launch, or launches: the kind of a graph and one, or 0. */
extern __thread uint32_t hold_makes_graph;

/* For the thread, without a lock and without a call of the driver: release what is held if it is time. Whether the hold
 * is over; one that was not begun by `until_ns` is. */
bool hold_watch(struct hold *hold, uint64_t now_ns, uint64_t until_ns);

/* Whether what is launched now may be held. */
static inline bool hold_is_on(const struct hold *hold)
{
    return atomic_load(&hold->state) == HOLD_ON;
}

/* Whether it is of what the thread launches. */
static inline bool hold_is_of(struct hold *hold)
{
    uint32_t of = atomic_load_explicit(&hold->held_kind, memory_order_relaxed);
    if (hold_makes_graph == 0 || of == HOLD_OF_KERNELS)
        return hold_makes_graph == 0 && of == HOLD_OF_KERNELS;
    return of == HOLD_OF_GRAPHS ||
           !atomic_load_explicit(&hold->known_graph_kinds[hold_makes_graph - 1], memory_order_relaxed);
}

/* For launchers, without a lock: whether a launch that is about to be made may begin the hold, or comes before it. */
static inline bool hold_may_begin(struct hold *hold)
{
    if (!hold_is_of(hold))
        return false;
    if (atomic_load_explicit(&hold->skip_count, memory_order_relaxed) > 0) {
        atomic_fetch_sub_explicit(&hold->skip_count, 1, memory_order_relaxed);
        return false;
    }
    return atomic_load_explicit(&hold->state, memory_order_relaxed) == HOLD_ASKED;
}

/* For launchers, with the gate's lock: a launch is about to be made into `stream`. Whether it is held from now on. */
bool hold_begin(struct hold *hold, const struct tracked_stream *stream, const struct stream_key *key);

/* For launchers, with the gate's lock: a launch was made into a stream. */
void hold_note(struct hold *hold, const struct stream_key *key);

/* For the thread, with the gate's lock: so many launches took so long in a row. False: that is not known yet. No
 * launches: the hold told nothing. */
bool hold_read(struct hold *hold, uint32_t *launches, uint64_t *device_ns);

/* Without a lock: whatever is held is released, and is not timed. */
void hold_spoil(struct hold *hold);

/* With the gate's lock: a context is about to be destroyed. */
void hold_forget(struct hold *hold, void *context);

#endif
