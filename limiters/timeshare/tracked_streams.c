/* Which streams have work that the device may not have finished (tracked_streams.h). */
#include "tracked_streams.h"

#include "../core/fault.h"

#include <stdlib.h>

static const struct stream_key nobody;

static struct tracked_stream *entry(const struct tracked_streams *streams, unsigned number)
{
    return &streams->chunks[number / TRACKED_STREAM_CHUNK][number % TRACKED_STREAM_CHUNK];
}

static bool idle(const struct tracked_stream *stream)
{
    return !stream->is_pending && !atomic_load_explicit(&stream->is_dirty, memory_order_relaxed);
}

static void empty(struct tracked_streams *streams, struct tracked_stream *stream, void (*drop)(void *fence))
{
    atomic_fetch_sub(&streams->wait_count, stream->wait_count);
    for (; stream->wait_count > 0; stream->wait_count--) {
        drop(stream->waits[stream->wait_count - 1].before_fence);
        drop(stream->waits[stream->wait_count - 1].after_fence);
    }
    if (stream->tail_fence != NULL)
        drop(stream->tail_fence);
    while (stream->spare_count > 0)
        drop(stream->spare_fences[--stream->spare_count]);
    stream->key = nobody;
    stream->context = stream->tail_fence = NULL;
    stream->is_pending = false;
    stream->ending_count = 0;
    atomic_store_explicit(&stream->is_dirty, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->generation, 1, memory_order_relaxed);
}

struct tracked_stream *tracked_streams_find(struct tracked_streams *streams, const struct stream_key *key)
{
    for (unsigned i = 0; i < streams->reached_count; i++)
        if (same_stream(&entry(streams, i)->key, key))
            return entry(streams, i);
    return NULL;
}

/* An entry that was never used; NULL when there is none, or no memory for any. */
static struct tracked_stream *unused(struct tracked_streams *streams)
{
    unsigned chunk = streams->reached_count / TRACKED_STREAM_CHUNK;
    if (chunk == TRACKED_STREAM_CHUNKS || FAULT(streams_untracked))
        return NULL;
    if (streams->chunks[chunk] == NULL)
        streams->chunks[chunk] = calloc(TRACKED_STREAM_CHUNK, sizeof **streams->chunks);
    return streams->chunks[chunk] == NULL ? NULL : entry(streams, streams->reached_count++);
}

/* An entry without work: a new one, one whose stream is gone, or else one whose stream is idle and can come back. */
static struct tracked_stream *vacant(struct tracked_streams *streams)
{
    struct tracked_stream *resting = NULL;
    for (unsigned i = 0; i < streams->reached_count; i++) {
        if (!idle(entry(streams, i)) || entry(streams, i)->ending_count > 0)
            continue;
        if (same_stream(&entry(streams, i)->key, &nobody))
            return entry(streams, i);
        resting = entry(streams, i);
    }
    if (resting != NULL && streams->reached_count % TRACKED_STREAM_CHUNK == 0 && streams->reached_count > 0)
        return resting; /* before there are more of them */
    struct tracked_stream *new = unused(streams);
    return new != NULL ? new : resting;
}

struct tracked_stream *tracked_streams_get(struct tracked_streams *streams, const struct stream_key *key)
{
    struct tracked_stream *stream = tracked_streams_find(streams, key);
    if (stream != NULL)
        return stream;
    stream = vacant(streams);
    if (stream == NULL)
        return NULL;
    empty(streams, stream, streams->engine->drop);
    void *context = key->context != NULL ? key->context : streams->engine->stream_context(key->stream);
    void *tail = streams->engine->make(context);
    if (tail == NULL)
        return NULL;
    stream->context = context;
    stream->tail_fence = tail;
    stream->key = *key;
    return stream;
}

void tracked_stream_flush(struct tracked_streams *streams, struct tracked_stream *stream)
{
    /* Cleared first: a launch that comes between sets it again and is flushed the next time. */
    atomic_store_explicit(&stream->is_dirty, false, memory_order_seq_cst);
    if (streams->engine->set(stream->tail_fence, stream->key.stream))
        stream->is_pending = true;
    else if (FAULT(unfenced_work_forgotten))
        stream->is_pending = false;
    else
        atomic_store_explicit(&stream->is_dirty, true, memory_order_relaxed);
}

void *tracked_stream_take_fence(struct tracked_streams *streams, struct tracked_stream *stream)
{
    return stream->spare_count > 0 ? stream->spare_fences[--stream->spare_count]
                                   : streams->engine->make(stream->context);
}

void tracked_stream_return_fence(struct tracked_streams *streams, struct tracked_stream *stream, unsigned generation,
                                 void *fence)
{
    if (stream->generation == generation && stream->spare_count < TRACKED_STREAM_FENCES)
        stream->spare_fences[stream->spare_count++] = fence;
    else
        streams->engine->drop(fence);
}

static void return_wait(struct tracked_streams *streams, struct tracked_stream *stream, unsigned generation,
                        struct stream_wait wait)
{
    if (wait.before_fence != NULL)
        tracked_stream_return_fence(streams, stream, generation, wait.before_fence);
    if (wait.after_fence != NULL)
        tracked_stream_return_fence(streams, stream, generation, wait.after_fence);
}

bool tracked_stream_begin_wait(struct tracked_streams *streams, struct tracked_stream *stream, struct stream_wait *wait)
{
    tracked_stream_stands_at_wait(streams, stream); /* those that are over make room */
    if (stream->waits == NULL)
        stream->waits = calloc(TRACKED_STREAM_WAITS, sizeof *stream->waits);
    if (stream->waits == NULL || stream->wait_count == TRACKED_STREAM_WAITS || stream->ending_count > 0)
        return false;
    wait->generation = stream->generation;
    wait->before_fence = tracked_stream_take_fence(streams, stream);
    wait->after_fence = tracked_stream_take_fence(streams, stream);
    bool set = wait->before_fence != NULL && wait->after_fence != NULL &&
               streams->engine->set(wait->before_fence, stream->key.stream);
    if (!set)
        return_wait(streams, stream, stream->generation, *wait);
    return set;
}

void tracked_stream_end_wait(struct tracked_streams *streams, struct tracked_stream *stream, struct stream_wait wait,
                             bool made)
{
    bool known = made && stream->generation == wait.generation && stream->wait_count < TRACKED_STREAM_WAITS &&
                 stream->ending_count == 0 && streams->engine->set(wait.after_fence, stream->key.stream);
    if (!known) {
        return_wait(streams, stream, wait.generation, wait);
        return;
    }
    stream->waits[stream->wait_count++] = wait;
    atomic_fetch_add(&streams->wait_count, 1);
}

static void end_first_wait(struct tracked_streams *streams, struct tracked_stream *stream)
{
    struct stream_wait wait = stream->waits[0];
    stream->wait_count--;
    atomic_fetch_sub(&streams->wait_count, 1);
    for (unsigned at = 0; at < stream->wait_count; at++)
        stream->waits[at] = stream->waits[at + 1];
    atomic_fetch_add_explicit(&streams->passed_count, 1, memory_order_relaxed);
    return_wait(streams, stream, stream->generation, wait);
}

bool tracked_stream_stands_at_wait(struct tracked_streams *streams, struct tracked_stream *stream)
{
    while (stream->wait_count > 0 && stream->ending_count == 0 && streams->engine->passed(stream->waits[0].after_fence))
        end_first_wait(streams, stream);
    bool stands = stream->wait_count > 0 && stream->ending_count == 0 &&
                  streams->engine->passed(stream->waits[0].before_fence);
    if (stands)
        stream->stood_at_ns = streams->engine->now();
    return stands;
}

static bool has_passed(const struct tracked_streams *streams, const struct tracked_stream *stream)
{
    return stream->is_pending && stream->ending_count == 0 && streams->engine->passed(stream->tail_fence);
}

bool tracked_stream_settled(struct tracked_streams *streams, struct tracked_stream *stream)
{
    if (stream->ending_count == 0 && atomic_load_explicit(&stream->is_dirty, memory_order_relaxed))
        tracked_stream_flush(streams, stream);
    if (has_passed(streams, stream)) {
        stream->is_pending = false;
        atomic_fetch_add_explicit(&streams->passed_count, 1, memory_order_relaxed);
    }
    return idle(stream);
}

bool tracked_streams_settled(struct tracked_streams *streams)
{
    bool settled = true;
    for (unsigned i = 0; i < streams->reached_count; i++)
        settled = tracked_stream_settled(streams, entry(streams, i)) && settled;
    return settled;
}

bool tracked_streams_work(struct tracked_streams *streams)
{
    bool settled = tracked_streams_settled(streams), work = !settled && streams->wait_count == 0;
    for (unsigned i = 0; i < streams->reached_count && !settled && !work; i++)
        work = !idle(entry(streams, i)) && !tracked_stream_stands_at_wait(streams, entry(streams, i));
    return work;
}

bool tracked_streams_stand(struct tracked_streams *streams)
{
    bool stands = false;
    for (unsigned i = 0; i < streams->reached_count; i++) {
        struct tracked_stream *stream = entry(streams, i);
        if (has_passed(streams, stream))
            stream->is_pending = false;
        stands = stands || (stream->is_pending && !tracked_stream_stands_at_wait(streams, stream));
    }
    return stands;
}

void tracked_stream_retire(struct tracked_streams *streams, struct tracked_stream *stream)
{
    if (atomic_load_explicit(&stream->is_dirty, memory_order_relaxed))
        tracked_stream_flush(streams, stream);
    atomic_store_explicit(&stream->is_dirty, false, memory_order_relaxed); /* captured: its work had its fence before */
    stream->key = nobody;
    atomic_fetch_add_explicit(&stream->generation, 1, memory_order_relaxed);
}

void tracked_streams_context_ends(struct tracked_streams *streams, void *context)
{
    tracked_streams_settled(streams); /* what was launched has its fence */
    for (unsigned i = 0; i < streams->reached_count; i++)
        entry(streams, i)->ending_count += entry(streams, i)->context == context;
}

void tracked_streams_context_ended(struct tracked_streams *streams, void *context, bool context_exists)
{
    for (unsigned i = 0; i < streams->reached_count; i++) {
        struct tracked_stream *stream = entry(streams, i);
        if (stream->context == context && !context_exists)
            empty(streams, stream, streams->engine->forget);
        else if (stream->context == context && stream->ending_count > 0)
            stream->ending_count--;
    }
}
