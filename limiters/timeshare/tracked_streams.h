/* The streams a process uses on one device, and how far the device has come in each of them.
 *
 * A tracked stream is dirty when something was launched into it since its tail fence was last set, and pending until
 * the device has passed that fence. All but the atomic fields are under the owner's lock. Entries are never freed, only
 * reused: a thread may remember one together with its generation, and see whether it still is the same stream.
 */
#ifndef HETERO_TRACKED_STREAMS_H
#define HETERO_TRACKED_STREAMS_H

#include "engine.h"

#include <stdatomic.h>

/* Entries come in chunks, which never move: at most 16,384 streams of a process have work on one device at once. */
#define TRACKED_STREAM_CHUNK  256u
#define TRACKED_STREAM_CHUNKS 64u
#define TRACKED_STREAM_FENCES 4u

/* Of a stream so many operations at once are known that wait: a later one counts as work. */
#define TRACKED_STREAM_WAITS 8u

/* Which stream: a handle of its own, or a default stream, which is another one in every context (and, when it is the
 * per-thread one, in every thread). */
struct stream_key {
    void *stream;
    void *context; /* NULL for a stream with a handle of its own */
    void *thread;  /* NULL but for a per-thread default stream, which only its own thread can fence */
};

/* An operation at which a stream may stand while the device does nothing for it: a word of memory that somebody is to
 * write, or a function on the host. It is between two fences. */
struct stream_wait {
    void *before_fence, *after_fence;
    unsigned generation; /* of its stream, in which they are */
};

struct tracked_stream {
    struct stream_key key; /* all NULL: the stream is gone, or the entry was never used */
    void *context;
    void *tail_fence;
    void *spare_fences[TRACKED_STREAM_FENCES]; /* fences ready for use in this stream's context */
    unsigned spare_count;
    struct stream_wait *waits; /* TRACKED_STREAM_WAITS of them; NULL: there never was any */
    unsigned wait_count;       /* the first so many are known, in the stream's order */
    uint64_t stood_at_ns;      /* when it was last seen to stand at a wait */
    bool is_pending;
    unsigned ending_count;  /* so many calls that may end its context go on: its fences are neither asked nor dropped */
    atomic_uint generation; /* counts the streams this entry has been */
    atomic_bool is_dirty;
};

struct tracked_streams {
    const struct engine *engine;
    struct tracked_stream *chunks[TRACKED_STREAM_CHUNKS];
    unsigned reached_count;      /* entries beyond were never used */
    _Atomic uint32_t wait_count; /* of all streams, that are known and not over; read without the lock */
    _Atomic uint32_t
        passed_count; /* tail fences and waits that were seen to have passed; it wraps around; read without the lock */
};

static inline bool same_stream(const struct stream_key *one, const struct stream_key *other)
{
    return one->stream == other->stream && one->context == other->context && one->thread == other->thread;
}

/* The entry of a stream, made on first use; NULL when there are too many streams at once. */
struct tracked_stream *tracked_streams_get(struct tracked_streams *streams, const struct stream_key *key);

/* The entry of a stream; NULL when it has none. */
struct tracked_stream *tracked_streams_find(struct tracked_streams *streams, const struct stream_key *key);

/* Set the stream's tail fence after all that was launched. Where a capture forbids that, it stays dirty. */
void tracked_stream_flush(struct tracked_streams *streams, struct tracked_stream *stream);

/* Take a fence of the stream's context; give one back that was taken in this generation. */
void *tracked_stream_take_fence(struct tracked_streams *streams, struct tracked_stream *stream);
void tracked_stream_return_fence(struct tracked_streams *streams, struct tracked_stream *stream, unsigned generation,
                                 void *fence);

/* An operation that waits is about to be put into the stream; false if it will not be known as one. It was put there,
 * or it failed: the same stream. */
bool tracked_stream_begin_wait(struct tracked_streams *streams, struct tracked_stream *stream,
                               struct stream_wait *wait);
void tracked_stream_end_wait(struct tracked_streams *streams, struct tracked_stream *stream, struct stream_wait wait,
                             bool made);

/* Whether the device stands at such an operation, and does nothing for the stream. */
bool tracked_stream_stands_at_wait(struct tracked_streams *streams, struct tracked_stream *stream);

/* Whether the device has passed everything launched so far, into this stream or into all. */
bool tracked_stream_settled(struct tracked_streams *streams, struct tracked_stream *stream);
bool tracked_streams_settled(struct tracked_streams *streams);

/* Whether it may work for what it has not passed of that: not where every such stream stands at a wait. */
bool tracked_streams_work(struct tracked_streams *streams);

/* Whether it has not passed what had been launched when tracked_streams_settled was asked last. */
bool tracked_streams_stand(struct tracked_streams *streams);

/* The stream is about to be destroyed; what was launched into it still counts. */
void tracked_stream_retire(struct tracked_streams *streams, struct tracked_stream *stream);

/* A call begins that may end this context, and with it every stream and fence: meanwhile what was pending in it is.
 * It is over: the context lives, or it is gone. The latter calls no engine but `forget`. */
void tracked_streams_context_ends(struct tracked_streams *streams, void *context);
void tracked_streams_context_ended(struct tracked_streams *streams, void *context, bool context_exists);

#endif
