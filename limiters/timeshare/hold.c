/* Holds a stream for a moment (hold.h). */
#include "hold.h"

#include "../core/fault.h"

__thread uint32_t hold_makes_graph;

void hold_ask(struct hold *hold, uint32_t most_launches, uint32_t skip_count, enum hold_of held_kind, bool stalls)
{
    hold->most_launches = most_launches;
    hold->stalls_stream = stalls;
    atomic_store(&hold->held_kind, held_kind);
    atomic_store(&hold->skip_count, skip_count);
    atomic_store(&hold->state, HOLD_ASKED);
}

static bool switch_state(struct hold *hold, uint32_t from, uint32_t into)
{
    return atomic_compare_exchange_strong(&hold->state, &from, into);
}

static void release(struct hold *hold)
{
    if (atomic_exchange(&hold->is_releasing, true))
        return;
    hold->engine->release(hold->handle);
    atomic_store(&hold->is_released, true);
}

/* What was stamped while everything was held is timed; a stamp from while it was released is not. */
static void stamp(struct hold *hold)
{
    hold->engine->stamp(hold->handle, hold->stream.stream);
    hold->stamped_launches = atomic_load(&hold->launch_count);
    if (atomic_load(&hold->is_releasing))
        atomic_store(&hold->state, HOLD_SPOILED);
}

static void end(struct hold *hold)
{
    release(hold);
    switch_state(hold, HOLD_ON, HOLD_OVER);
}

static bool take_handle(struct hold *hold, void *context)
{
    if (hold->handle != NULL && hold->context != context) {
        hold->engine->drop_hold(hold->handle);
        hold->handle = NULL;
    }
    if (hold->handle == NULL)
        hold->handle = hold->engine->make_hold(context);
    hold->context = context;
    return hold->handle != NULL;
}

bool hold_begin(struct hold *hold, const struct tracked_stream *stream, const struct stream_key *key)
{
    if (!switch_state(hold, HOLD_ASKED, HOLD_BEGINS))
        return false;
    hold->stream = *key;
    hold->stamped_launches = 0;
    atomic_store(&hold->launch_count, 0);
    bool made = take_handle(hold, stream->context);
    uint64_t now_ns = hold->engine->now();
    atomic_store(&hold->has_let_go, false);
    atomic_store(&hold->begun_at_ns, now_ns);
    atomic_store(&hold->last_launch_at_ns, now_ns);
    atomic_store(&hold->is_released, !made);
    atomic_store(&hold->is_releasing, !made);
    bool held = made && hold->engine->hold(hold->handle, key->stream, hold->stalls_stream);
    if (!held || atomic_load(&hold->has_let_go)) {
        if (made)
            hold->engine->release(hold->handle);
        atomic_store(&hold->is_releasing, true);
        atomic_store(&hold->is_released, true);
        atomic_store(&hold->state, HOLD_SPOILED);
        return false;
    }
    atomic_store(&hold->state, HOLD_ON);
    if (hold->most_launches > 0)
        return true;
    stamp(hold);
    end(hold);
    return false;
}

void hold_note(struct hold *hold, const struct stream_key *key)
{
    if (!same_stream(key, &hold->stream)) {
        hold_spoil(hold);
        return;
    }
    if (!hold_is_of(hold)) { /* what was stamped before it is timed */
        end(hold);
        return;
    }
    if (hold_makes_graph > 0)
        atomic_store(&hold->last_graph_kind, hold_makes_graph - 1);
    uint32_t launches = atomic_fetch_add(&hold->launch_count, 1) + 1;
    atomic_store(&hold->last_launch_at_ns, hold->engine->now());
    if (!atomic_load(&hold->is_releasing) && (!FAULT(rare_long_kernels_unseen) || launches == 1 || launches == 4))
        stamp(hold);
    if (launches >= hold->most_launches)
        end(hold);
}

/* A launcher that begins a hold may be kept in the driver by whoever waits there, with the driver's lock, for what is
 * held. It is released again at each look, because the first may come before the stream is held. */
static void free_launcher(struct hold *hold, uint64_t now_ns)
{
    atomic_store(&hold->is_letting_go, true); /* the handle stays until it is not */
    if (!atomic_load(&hold->is_released) && now_ns >= atomic_load(&hold->begun_at_ns) + HOLD_MOST_NS) {
        atomic_store(&hold->has_let_go, true);
        hold->engine->release(hold->handle);
    }
    atomic_store(&hold->is_letting_go, false);
}

bool hold_watch(struct hold *hold, uint64_t now_ns, uint64_t until_ns)
{
    uint32_t state = atomic_load(&hold->state);
    if (state == HOLD_ASKED)
        return now_ns >= until_ns && switch_state(hold, HOLD_ASKED, HOLD_SPOILED);
    if (state == HOLD_BEGINS)
        free_launcher(hold, now_ns);
    else if (atomic_load(&hold->has_let_go)) /* its launcher had come past looking at that */
        hold_spoil(hold);
    if (state != HOLD_ON)
        return state == HOLD_OVER || state == HOLD_SPOILED;
    bool paused = now_ns > atomic_load(&hold->last_launch_at_ns) + HOLD_PAUSE_NS;
    if (paused || now_ns > atomic_load(&hold->begun_at_ns) + HOLD_MOST_NS)
        end(hold);
    return atomic_load(&hold->state) != HOLD_ON;
}

bool hold_read(struct hold *hold, uint32_t *launches, uint64_t *device_ns)
{
    bool over = atomic_load(&hold->state) == HOLD_OVER && (hold->stamped_launches > 0 || hold->most_launches == 0);
    if (over && !hold->engine->held_ns(hold->handle, device_ns))
        return false;
    *launches = over ? hold->stamped_launches : 0;
    *device_ns = !over ? 0 : *device_ns > 0 ? *device_ns : 1;
    atomic_store(&hold->state, HOLD_NONE);
    return true;
}

void hold_spoil(struct hold *hold)
{
    if (switch_state(hold, HOLD_ASKED, HOLD_SPOILED) || switch_state(hold, HOLD_ON, HOLD_SPOILED) ||
        switch_state(hold, HOLD_OVER, HOLD_SPOILED))
        release(hold);
}

void hold_forget(struct hold *hold, void *context)
{
    if (hold->handle == NULL || hold->context != context)
        return;
    hold_spoil(hold);
    while (!atomic_load(&hold->is_released) || atomic_load(&hold->is_letting_go)) /* the thread releases it */
        ;
    hold->engine->drop_hold(hold->handle);
    hold->handle = NULL;
}
