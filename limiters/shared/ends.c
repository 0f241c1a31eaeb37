/* Contexts and streams end here, and with them the memory, the fences and the tracked streams that lived in them. */
#include "ends.h"

#include "bodies.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "governors.h"
#include "held.h"
#include "pools.h"
#include "room.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <stdatomic.h>

/* What exported pools are charged and no figure has: where they end it counts as unseen (pools.h). */
static int64_t of_exported_pools(void)
{
    uint64_t bytes = 0;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        bytes += pools_idle(device, true);
    return (int64_t)bytes;
}

struct card_use before_context_ends(context_t context)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL && context != NULL && FAULT(context_ends_uncharged))
            gate_after_context_ended(&governor->gate, context, false);
        else if (governor != NULL && context != NULL)
            gate_before_context_ends(&governor->gate, context);
    }
    struct card_use before = before_context(context);
    before.process += of_exported_pools();
    return before;
}

void context_call_over(context_t context, bool lives)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL && context != NULL)
            gate_after_context_ended(&governor->gate, context, lives && !FAULT(context_ends_uncharged));
    }
}

static bool stream_of(const struct entry *entry, const void *context)
{
    return entry->kind == STREAM_DEVICE && entry->owner == context;
}

void streams_ended(context_t context)
{
    struct entry entry;
    while (context != NULL && table_take_match(stream_of, context, &entry))
        ;
    captures_over(context);
    room_context_over(context);
}

void after_context_ended(context_t context, struct card_use before)
{
    streams_ended(context);
    struct entry shared = shared_in(context);
    int opened = take_opened(context);
    refund_context(context);
    pools_context_over(context);
    before.process -= of_exported_pools();
    shared_context_over(&shared, before);
    if (opened > 0)
        say_opened(-opened); /* what ended processes shared may be given back then, which is in what this one lost */
    context_over(context);
}

/* Of each device: streams that are there, which contexts may have taken along, and the most that there were. */
static struct {
    atomic_uint live, most;
} streams[HETERO_MAX_DEVICES];

void stream_made(int device)
{
    unsigned live = atomic_fetch_add(&streams[device].live, 1) + 1, most = atomic_load(&streams[device].most);
    while (live > most && !atomic_compare_exchange_weak(&streams[device].most, &most, live))
        ;
}

bool stream_takes_more(int device)
{
    unsigned most = atomic_load(&streams[device].most);
    return most % STREAMS_OF_A_BLOCK == 0 && atomic_load(&streams[device].live) >= most;
}

static void stream_ended(int device)
{
    unsigned live = device < 0 ? 0 : atomic_load(&streams[device].live);
    while (live > 0 && !atomic_compare_exchange_weak(&streams[device].live, &live, live - 1))
        ;
}

result_t destroy_stream(result_t (*real)(stream_t), stream_t stream)
{
    struct stream_key key = {.stream = stream};
    struct entry entry;
    int of = device_of_stream(stream); /* which notes it, so that it is forgotten after this */
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL)
            gate_before_stream_ends(&governor->gate, &key);
    }
    table_take(STREAM_DEVICE, (uintptr_t)stream, &entry);
    pools_stream_over(stream);
    if (!FAULT(stream_ends_keep_frees))
        room_stream_over(stream);
    result_t answer = real(stream);
    if (answer == RESULT_OK) {
        stream_ended(of);
        capture_over((uintptr_t)stream); /* abandoned */
    }
    return answer;
}
