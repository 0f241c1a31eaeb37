/* Tracked streams (tracked streams.h): which streams have work that the device may not have finished. */
#include "tracked_streams.h"

#include <string.h>

static const struct stream_key nobody;

static bool idle(const struct tracked_stream *tracked_stream)
{
    return !tracked_stream->pending && !atomic_load_explicit(&tracked_stream->dirty, memory_order_relaxed);
}

static void empty(struct tracked_streams *tracked_streams, struct tracked_stream *tracked_stream)
{
    if (tracked_stream->tail != NULL)
        tracked_streams->engine->drop(tracked_stream->tail);
    while (tracked_stream->spares > 0)
        tracked_streams->engine->drop(tracked_stream->spare[--tracked_stream->spares]);
    tracked_stream->key = nobody;
    tracked_stream->context = tracked_stream->tail = NULL;
    tracked_stream->pending = false;
    atomic_store_explicit(&tracked_stream->dirty, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&tracked_stream->generation, 1, memory_order_relaxed);
}

struct tracked_stream *tracked_stream_known(struct tracked_streams *tracked_streams, const struct stream_key *key)
{
    for (unsigned i = 0; i < tracked_streams->highest; i++)
        if (same_stream(&tracked_streams->tracked_stream[i].key, key))
            return &tracked_streams->tracked_stream[i];
    return NULL;
}

/* A tracked stream nobody uses: a new one, one whose stream is gone, or else one whose stream rests and can come back. */
static struct tracked_stream *vacant(struct tracked_streams *tracked_streams)
{
    struct tracked_stream *resting = NULL;
    for (unsigned i = 0; i < tracked_streams->highest; i++) {
        if (!idle(&tracked_streams->tracked_stream[i]))
            continue;
        if (same_stream(&tracked_streams->tracked_stream[i].key, &nobody))
            return &tracked_streams->tracked_stream[i];
        resting = &tracked_streams->tracked_stream[i];
    }
    return tracked_streams->highest < TRACKED_STREAMS ? &tracked_streams->tracked_stream[tracked_streams->highest++] : resting;
}

struct tracked_stream *tracked_stream_of(struct tracked_streams *tracked_streams, const struct stream_key *key)
{
    struct tracked_stream *tracked_stream = tracked_stream_known(tracked_streams, key);
    if (tracked_stream != NULL)
        return tracked_stream;
    tracked_stream = vacant(tracked_streams);
    if (tracked_stream == NULL)
        return NULL;
    empty(tracked_streams, tracked_stream);
    void *context = key->context != NULL ? key->context : tracked_streams->engine->stream_context(key->stream);
    void *tail = tracked_streams->engine->make(context);
    if (tail == NULL)
        return NULL;
    tracked_stream->context = context;
    tracked_stream->tail = tail;
    tracked_stream->key = *key;
    return tracked_stream;
}

void tracked_stream_flush(struct tracked_streams *tracked_streams, struct tracked_stream *tracked_stream)
{
    /* Cleared first: a launch that comes between sets it again and is flushed the next time. */
    atomic_store_explicit(&tracked_stream->dirty, false, memory_order_seq_cst);
    tracked_stream->pending = tracked_streams->engine->set(tracked_stream->tail, tracked_stream->key.stream);
}

void *tracked_stream_take_fence(struct tracked_streams *tracked_streams, struct tracked_stream *tracked_stream)
{
    return tracked_stream->spares > 0 ? tracked_stream->spare[--tracked_stream->spares] : tracked_streams->engine->make(tracked_stream->context);
}

void tracked_stream_return_fence(struct tracked_streams *tracked_streams, struct tracked_stream *tracked_stream, unsigned generation, void *fence)
{
    if (tracked_stream->generation == generation && tracked_stream->spares < TRACKED_STREAM_FENCES)
        tracked_stream->spare[tracked_stream->spares++] = fence;
    else
        tracked_streams->engine->drop(fence);
}

bool tracked_streams_settled(struct tracked_streams *tracked_streams)
{
    bool settled = true;
    for (unsigned i = 0; i < tracked_streams->highest; i++) {
        struct tracked_stream *tracked_stream = &tracked_streams->tracked_stream[i];
        if (atomic_load_explicit(&tracked_stream->dirty, memory_order_relaxed))
            tracked_stream_flush(tracked_streams, tracked_stream);
        if (tracked_stream->pending && tracked_streams->engine->passed(tracked_stream->tail))
            tracked_stream->pending = false;
        settled = settled && !tracked_stream->pending;
    }
    return settled;
}

void tracked_stream_retire(struct tracked_streams *tracked_streams, struct tracked_stream *tracked_stream)
{
    if (atomic_load_explicit(&tracked_stream->dirty, memory_order_relaxed))
        tracked_stream_flush(tracked_streams, tracked_stream);
    tracked_stream->key = nobody;
    atomic_fetch_add_explicit(&tracked_stream->generation, 1, memory_order_relaxed);
}

void tracked_streams_forget_context(struct tracked_streams *tracked_streams, void *context)
{
    for (unsigned i = 0; i < tracked_streams->highest; i++)
        if (tracked_streams->tracked_stream[i].context == context)
            empty(tracked_streams, &tracked_streams->tracked_stream[i]);
}
