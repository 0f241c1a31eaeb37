/* The streams a process uses on one device, and how far the device has come in each of them.
 *
 * A lane is dirty when something was launched into its stream since its tail mark was last set, and pending until the
 * device has passed the mark. All but the atomic fields are under the owner's lock; lanes are never freed, only reused,
 * so a thread may remember one together with `life` and see whether it still is what it was.
 */
#ifndef HETERO_LANES_H
#define HETERO_LANES_H

#include "engine.h"

#include <stdatomic.h>
#include <stddef.h>

#define LANES     256u
#define LANE_MARKS 4u

/* Which stream: a handle of its own, or a default stream, which is another one in every context (and, when it is the
 * per-thread one, in every thread). */
struct stream_key {
    void *stream;
    void *context; /* NULL for a stream with a handle of its own */
    void *thread;  /* NULL but for a per-thread default stream, which only its own thread can mark */
};

struct lane {
    struct stream_key key; /* all NULL: the stream is gone, or the lane was never used */
    void *context;
    void *tail;
    void *spare[LANE_MARKS]; /* marks ready for use in this lane's context */
    unsigned spares;
    bool pending;
    atomic_uint life; /* counts the streams this lane has been */
    atomic_bool dirty;
};

struct lanes {
    const struct engine *engine;
    struct lane lane[LANES];
    unsigned highest; /* lanes beyond were never used */
};

static inline bool same_stream(const struct stream_key *one, const struct stream_key *other)
{
    return one->stream == other->stream && one->context == other->context && one->thread == other->thread;
}

/* The lane of a stream, made on first use; NULL when there are too many streams at once. */
struct lane *lanes_of(struct lanes *lanes, const struct stream_key *key);
struct lane *lanes_known(struct lanes *lanes, const struct stream_key *key);

/* Set the lane's tail after all that was launched. */
void lane_flush(struct lanes *lanes, struct lane *lane);

/* A mark of the lane's context, and its return. */
void *lane_mark(struct lanes *lanes, struct lane *lane);
void lane_unmark(struct lanes *lanes, struct lane *lane, unsigned life, void *mark);

/* Whether the device has passed everything launched so far. */
bool lanes_settled(struct lanes *lanes);

/* The stream is about to be destroyed; what was launched into it still counts. */
void lane_retire(struct lanes *lanes, struct lane *lane);

/* The context is about to be destroyed, and every stream and mark with it. */
void lanes_forget_context(struct lanes *lanes, void *context);

#endif
