/* Contexts and streams end here, and with them the memory, the fences and the tracked streams that lived in them. */
#include "ends.h"

#include "bodies.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "governors.h"
#include "held.h"
#include "pools.h"
#include "room.h"
#include "uncounted.h"

struct card_use before_context_ends(context_t context)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL && context != NULL)
            gate_before_context_ends(&governor->gate, context);
    }
    return before_context(context);
}

static bool stream_of(const struct entry *entry, const void *context)
{
    return entry->kind == STREAM_DEVICE && entry->owner == context;
}

void after_context_ended(context_t context, struct card_use before)
{
    struct entry entry;
    while (context != NULL && table_take_match(stream_of, context, &entry))
        ;
    captures_over(context);
    room_context_over(context);
    struct entry shared = shared_in(context);
    int opened = take_opened(context);
    refund_context(context);
    pools_context_over(context);
    shared_context_over(&shared, before);
    if (opened > 0)
        say_opened(-opened); /* what ended processes shared may be given back then, which is in what this one lost */
    context_over(context);
}

result_t destroy_stream(result_t (*real)(stream_t), stream_t stream)
{
    struct stream_key key = {.stream = stream};
    struct entry entry;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL)
            gate_before_stream_ends(&governor->gate, &key);
    }
    table_take(STREAM_DEVICE, (uintptr_t)stream, &entry);
    pools_stream_over(stream);
    room_stream_over(stream);
    result_t answer = real(stream);
    if (answer == RESULT_OK)
        capture_over((uintptr_t)stream); /* abandoned */
    return answer;
}
