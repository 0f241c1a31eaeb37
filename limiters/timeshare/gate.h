/* The gate that launches pass: open during a time slice of this process, closed between them.
 *
 * Launchers pass it, set fences behind what they launch, and wait while too much is in flight. Whose time slice it is,
 * and when the gate opens, is decided by a thread that the first launcher at a closed gate starts (governor.h).
 */
#ifndef HETERO_GATE_H
#define HETERO_GATE_H

#include "engine.h"
#include "hold.h"
#include "tracked_streams.h"

#include "../core/grant.h"

#include <pthread.h>
#include <signal.h>

/* Fences at once; in a gang's row all but a few may be in flight (gate_deepen). */
#define GATE_FENCES 32u

/* So many threads at once are known to be between enter and leave; more are only counted. */
#define GATE_CELLS 16u

/* A launcher at the gate looks at its terms this often: the limit may have been lifted. */
#define GATE_LOOK_NS (50 * MS)

/* Ready: closed, but launchers wait awake, because it is about to be open. Holds: open, and one of those that pass
 * begins a hold before its launch. Ends: closed, and launchers wait awake, because each may be let through for one
 * operation (gang.h). Silent: closed by a launcher, because the thread has not looked at an open gate for long. */
enum { GATE_CLOSED = 0, GATE_OPEN = 1, GATE_READY = 2, GATE_HOLDS = 3, GATE_ENDS = 4, GATE_SILENT = 5 };

/* A token to pass the closed gate: none, one for a launch into a stream in which nothing is in flight, or for any. */
enum { GATE_TOKEN_NONE = 0, GATE_TOKEN_APART = 1, GATE_TOKEN_ANY = 2 };

static inline bool gate_opens(uint32_t state)
{
    return state == GATE_OPEN || state == GATE_HOLDS;
}

/* What the gate calls of its owner, who opens and closes it. */
struct gate_callbacks {
    void *(*thread)(void *owner); /* opens and closes the gate, in a thread of its own */
    /* Charges device time that was used after the gate was retired; returns the grant's remaining debt in ns. */
    uint64_t (*charge)(void *owner, uint64_t ns);
    void *owner;
    bool is_started;       /* the thread */
    uint64_t logged_at_ns; /* when it was last logged that it could not be; 0: never */
};

/* Launchers at the closed gate. */
struct gate_queue {
    _Atomic uint32_t waiting_count;        /* so many */
    _Atomic uint32_t waiting_small_count;  /* of them, make small copies */
    _Atomic uint32_t look_count;           /* futex: how often one has come, or looked again */
    _Atomic uint32_t wake_count;           /* futex: how often they were told to look again */
    _Atomic uint32_t pass_count;           /* how often each of them was let through for one operation */
    _Atomic uint32_t passing_small_count;  /* so many small copies pass */
    _Atomic uint32_t token;                /* GATE_TOKEN_*: one launcher passes with it, for one operation */
    _Atomic uint32_t allowed_launch_count; /* at the end of a row they pass until so many launches were made */
};

/* What was launched since the start; each wraps around. */
struct gate_made {
    _Atomic uint32_t launch_count;
    _Atomic uint32_t graph_count;                           /* so many of them of graphs: counted a moment later */
    _Atomic uint32_t graph_count_by_kind[HOLD_GRAPH_KINDS]; /* of each kind */
};

/* Launchers between enter and leave. */
struct gate_inside {
    _Atomic uintptr_t launcher_cells[GATE_CELLS]; /* each a thread's, or 0 (gate.c) */
    _Atomic uint32_t uncelled_launcher_count;     /* so many more found no cell */
};

/* The event behind a launch, by which it is seen how far the device has come. */
struct gate_fence {
    void *fence;
    uint64_t set_at_ns;
    struct tracked_stream *stream;
    unsigned generation;
    void *context;
    unsigned ending_count; /* as its stream's */
};

struct gate_fences {
    _Atomic uint32_t pending_count;       /* so many are set and have not passed yet */
    _Atomic uint32_t stride_launches;     /* launches between two; 0: a hold is on, or was: each is counted for it */
    uint32_t stride_before_hold;          /* what the stride was before the hold that is on */
    _Atomic uint32_t fenced_launch_count; /* the launch count at the last one */
    _Atomic uint64_t popped_at_ns;        /* when one was last seen to have passed */
    _Atomic uint32_t popped_count;        /* so many passed, or their context is gone; it wraps around */
    _Atomic uint32_t
        known_stride_launches; /* what is launched is known, and so many take as long as one stands for; or 0 */
    _Atomic uint32_t most_pending_count;    /* so many may be in flight, if more than else; written by the thread */
    _Atomic bool are_short;                 /* what one stands for is soon done */
    struct gate_fence pending[GATE_FENCES]; /* the first `pending_count` of them, in the order in which they were set */
    uint64_t asked_at_ns;                   /* when it was last asked whether some have passed */
    uint64_t timed_from_ns;                 /* a moment of this time slice; 0: there was none in it yet */
    uint32_t timed_count;                   /* so many have since then */
    int64_t mean_interval_ns;               /* how often they do, on average */
};

/* A long kernel is launched by one thread at a time. */
struct gate_sole {
    _Atomic uintptr_t thread_id;   /* the thread that is making the launch of one; 0: none is. Set with the lock */
    uint64_t taken_at_ns;          /* when `thread_id` was set last */
    _Atomic bool kernels_are_long; /* one fence stands for much, or that is not known yet */
};

/* Launches of a process that exits, which are charged without the thread. */
struct gate_exits {
    uint64_t first_launch_at_ns;     /* time of the first launch; 0: it is not retired, or none came */
    uint64_t device_ns;              /* device time that they used */
    uint64_t pending_launch_at_ns;   /* time of the last launch that was not seen to complete; 0: none is pending */
    bool queued_behind_earlier_work; /* that launch was queued behind work from before it */
};

struct gate {
    /* Written before the gate is published, then constant; but for what `callbacks` notes. */
    const struct engine *engine;
    const struct hetero_grant_device *grant_device;
    struct gate_callbacks callbacks;
    unsigned gate_number; /* of this gate among all that the process made, from 1: an address may be used twice */

    _Atomic uint32_t state;              /* GATE_*; written by the thread, GATE_SILENT by launchers */
    _Atomic uint64_t looked_at_ns;       /* when the thread last looked at the open gate; 0: it does not tell */
    _Atomic uint64_t first_launch_at_ns; /* when the time slice's first launch came; 0: not yet */
    struct gate_queue queue;
    struct gate_made made;
    struct gate_inside inside;
    struct gate_sole sole;
    _Atomic bool others_work;       /* others have work in flight, none of high priority; written by the thread */
    _Atomic bool wants_low_latency; /* a high-priority grant may want the device at any time; written by the thread */

    pthread_mutex_t lock; /* guards the rest, and is held around every call of the engine but now, pause and power */
    sigset_t blocked_signals;  /* those that the holder of the lock had blocked: a handler that launches wants the lock,
                                  too */
    struct gate_fences fences; /* what is atomic of it is read without the lock */
    struct tracked_streams streams;
    struct hold hold;
    struct gate_exits exits;
};

extern atomic_bool gates_retired; /* the process is exiting: set once, never cleared */

/* Make a closed gate; `thread(owner)` is to open it. */
void gate_make(struct gate *gate, const struct engine *engine, const struct hetero_grant_device *terms,
               void *(*thread)(void *owner), uint64_t (*charge)(void *owner, uint64_t spent_ns), void *owner);

/* ---------------------------------------------------------------------------------------------------- for launchers */

/* Wait until a launch into `stream` may go ahead. False: the limit was lifted meanwhile, launch without leaving. */
bool gate_enter(struct gate *gate, const struct stream_key *stream);

/* The launch was made into `stream`. */
void gate_leave(struct gate *gate, const struct stream_key *stream);

/* This thread launches that graph from now on, or none (NULL): it says so before it enters and after it has left; and
 * it was made, after it has left. */
void gate_makes_graph(const void *graph);
void gate_made_graph(struct gate *gate);

/* What this thread launches with that key, at this address, is a copy of a few bytes; NULL: no longer. Where a kernel
 * in flight may spin for it, it passes the closed gate at once: it is charged with that kernel. */
void gate_makes_small(const struct stream_key *key);

/* It failed: nothing was made. The engine is not called, since AMD's runtime 5 has each call of a thread, also one that
 * succeeds, overwrite what the program asks for next: its last error. */
void gate_leave_failed(struct gate *gate);

/* An operation is put into a stream at which the device may stand without work. False: it will not be known as one, and
 * nothing is called after it. It was made, or it failed. Nothing is charged for the time in which everything that is in
 * flight stands at such ones. */
struct gate_wait {
    struct tracked_stream *stream;
    struct stream_wait wait;
};
bool gate_begin_wait(struct gate *gate, const struct stream_key *stream, struct gate_wait *wait);
void gate_end_wait(struct gate *gate, struct gate_wait wait, bool made);

/* Before a stream starts or joins a capture: from then on no fence may be set in it, nor in the legacy stream. */
void gate_before_capture(struct gate *gate);

/* Before a stream is destroyed. */
void gate_before_stream_ends(struct gate *gate, const struct stream_key *stream);

/* Before a call that may end a context, and after it: whether the context lives. Meanwhile what was in flight in it is:
 * the driver waits for it, or it is another's context, too. */
void gate_before_context_ends(struct gate *gate, void *context);
void gate_after_context_ended(struct gate *gate, void *context, bool context_exists);

/* --------------------------------------------------------------------------------------------------- for the thread */

/* Write the state, and wake the launchers that wait for it. */
void gate_set(struct gate *gate, uint32_t state);

/* Tell launchers at the open gate that the thread goes on to look at them. Without that for a quarter of a second they
 * wait until it does. */
void gate_look(struct gate *gate, uint64_t now_ns);

/* Let each launcher that waits at the closed gate make one operation; one of them, by a token, which is taken back
 * where the gate opens; and at the end of a row any launcher, until so many launches were made since the start. */
void gate_let_through(struct gate *gate);
void gate_give_token(struct gate *gate, uint32_t token);
void gate_let_small_through(struct gate *gate, uint32_t copies);
void gate_allow(struct gate *gate, uint32_t launches);

/* Let so many fences be in flight, where kernels are short: a launcher that would wait for the device goes on, as it
 * does where there is no gate. */
void gate_deepen(struct gate *gate, uint32_t fences);

/* How many fences have passed since the start, as far as was asked; it wraps around. */
uint32_t gate_signaled_fences(struct gate *gate);

/* How long the device works for a launch is known; 0: no longer. */
void gate_know(struct gate *gate, uint64_t launch_ns);

/* At the open gate, hold a stream that is launched into, and wait until it was released: two milliseconds at most,
 * without a call of the driver meanwhile. What is launched meanwhile has no fence, so that it is `most_launches`
 * launches; all graphs, or none. Only where the engine has holds. False: the process exits. */
bool gate_hold(struct gate *gate, uint32_t most_launches, uint32_t skip_count, enum hold_of held_kind, bool stalls,
               uint64_t wait_ns);

/* What the hold told (hold.h). */
bool gate_held(struct gate *gate, uint32_t *launches, uint64_t *device_ns);

/* The next launch gets a fence: where few are made, they would be far apart. */
void gate_fence_next(struct gate *gate);

/* Fences are timed anew: the next ones are of another time slice. */
void gate_forget_timing(struct gate *gate);

/* At exit: the threads call no engine any more, because the driver may be gone. A program that launches all the same,
 * in handlers and destructors that run later, has a driver: its launches go one after the other, each is charged from
 * its start to its end, and all together take the share of the time since, and 5 ms; and all of such processes of a
 * grant its share beyond these. */
void gate_retire(struct gate *gate);

/* Of a retired gate: whether a launch was made whose end is not known. Who sleeps on `look_count` is told of the next.
 */
bool gate_exits(struct gate *gate);

/* Launches made since the start; it wraps around. */
static inline uint32_t gate_launches(struct gate *gate)
{
    return atomic_load_explicit(&gate->made.launch_count, memory_order_relaxed);
}

static inline uint32_t gate_graphs(struct gate *gate)
{
    return atomic_load_explicit(&gate->made.graph_count, memory_order_acquire);
}

/* Whether the device has no work of ours, and is not about to: it has passed everything that was launched, or stands at
 * waits before the rest, and no launcher is between enter and leave but one that waits at the gate in a signal handler.
 * False where that cannot be told at once. */
bool gate_is_idle(struct gate *gate);

/* Of an idle one: whether something is left that goes on when a wait ends. True where that cannot be told at once. */
bool gate_waits(struct gate *gate);

/* A moment at which something was in flight, for gate_stands. */
struct gate_moment {
    uint32_t launch_count;                    /* made by then */
    uint32_t least_in_flight, most_in_flight; /* so many of them were in flight */
    bool launcher_inside;                     /* a launcher was between enter and leave */
};

/* Whether something is in flight now. False where that cannot be told at once. */
bool gate_marks(struct gate *gate, struct gate_moment *moment);

/* Whether all of what was in flight then is not done, or the same launcher is in the driver. True where that cannot be
 * told at once. */
bool gate_stands(struct gate *gate, const struct gate_moment *moment);

#endif
