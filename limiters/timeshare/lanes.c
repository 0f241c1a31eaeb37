/* Lanes (lanes.h): which streams have work that the device may not have finished. */
#include "lanes.h"

#include <string.h>

static const struct stream_key nobody;

static bool idle(const struct lane *lane)
{
    return !lane->pending && !atomic_load_explicit(&lane->dirty, memory_order_relaxed);
}

static void empty(struct lanes *lanes, struct lane *lane)
{
    if (lane->tail != NULL)
        lanes->engine->drop(lane->tail);
    while (lane->spares > 0)
        lanes->engine->drop(lane->spare[--lane->spares]);
    lane->key = nobody;
    lane->context = lane->tail = NULL;
    lane->pending = false;
    atomic_store_explicit(&lane->dirty, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&lane->life, 1, memory_order_relaxed);
}

struct lane *lanes_known(struct lanes *lanes, const struct stream_key *key)
{
    for (unsigned i = 0; i < lanes->highest; i++)
        if (same_stream(&lanes->lane[i].key, key))
            return &lanes->lane[i];
    return NULL;
}

/* A lane nobody uses: a new one, one whose stream is gone, or else one whose stream rests and can come back. */
static struct lane *vacant(struct lanes *lanes)
{
    struct lane *resting = NULL;
    for (unsigned i = 0; i < lanes->highest; i++) {
        if (!idle(&lanes->lane[i]))
            continue;
        if (same_stream(&lanes->lane[i].key, &nobody))
            return &lanes->lane[i];
        resting = &lanes->lane[i];
    }
    return lanes->highest < LANES ? &lanes->lane[lanes->highest++] : resting;
}

struct lane *lanes_of(struct lanes *lanes, const struct stream_key *key)
{
    struct lane *lane = lanes_known(lanes, key);
    if (lane != NULL)
        return lane;
    lane = vacant(lanes);
    if (lane == NULL)
        return NULL;
    empty(lanes, lane);
    void *context = key->context != NULL ? key->context : lanes->engine->home(key->stream);
    void *tail = lanes->engine->make(context);
    if (tail == NULL)
        return NULL;
    lane->context = context;
    lane->tail = tail;
    lane->key = *key;
    return lane;
}

void lane_flush(struct lanes *lanes, struct lane *lane)
{
    /* Cleared first: a launch that comes between sets it again and is flushed the next time. */
    atomic_store_explicit(&lane->dirty, false, memory_order_seq_cst);
    lane->pending = lanes->engine->set(lane->tail, lane->key.stream);
}

void *lane_mark(struct lanes *lanes, struct lane *lane)
{
    return lane->spares > 0 ? lane->spare[--lane->spares] : lanes->engine->make(lane->context);
}

void lane_unmark(struct lanes *lanes, struct lane *lane, unsigned life, void *mark)
{
    if (lane->life == life && lane->spares < LANE_MARKS)
        lane->spare[lane->spares++] = mark;
    else
        lanes->engine->drop(mark);
}

bool lanes_settled(struct lanes *lanes)
{
    bool settled = true;
    for (unsigned i = 0; i < lanes->highest; i++) {
        struct lane *lane = &lanes->lane[i];
        if (atomic_load_explicit(&lane->dirty, memory_order_relaxed))
            lane_flush(lanes, lane);
        if (lane->pending && lanes->engine->passed(lane->tail))
            lane->pending = false;
        settled = settled && !lane->pending;
    }
    return settled;
}

void lane_retire(struct lanes *lanes, struct lane *lane)
{
    if (atomic_load_explicit(&lane->dirty, memory_order_relaxed))
        lane_flush(lanes, lane);
    lane->key = nobody;
    atomic_fetch_add_explicit(&lane->life, 1, memory_order_relaxed);
}

void lanes_forget_context(struct lanes *lanes, void *context)
{
    for (unsigned i = 0; i < lanes->highest; i++)
        if (lanes->lane[i].context == context)
            empty(lanes, &lanes->lane[i]);
}
