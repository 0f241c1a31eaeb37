/* Ends contexts and streams, and with them the memory, the fences and the tracked streams in them. */
#include "ends.h"

#include "bodies.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "governors.h"
#include "held.h"
#include "pools.h"
#include "reclaim.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <stdatomic.h>

/* Bytes that are charged for exported pools and that no figure has; when the pools end they count as unseen (pools.h).
 */
static int64_t exported_pool_bytes(void)
{
    uint64_t bytes = 0;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        bytes += pools_idle_bytes(device, true);
    return (int64_t)bytes;
}

struct card_use before_context_ends(context_t context)
{
    gates_before_context_ends(context);
    struct card_use use_before = use_before_context(context);
    use_before.process_bytes += exported_pool_bytes();
    return use_before;
}

void context_call_over(context_t context, bool is_alive)
{
    gates_after_context_ended(context, is_alive);
}

static bool is_stream_of(const struct entry *entry, const void *context)
{
    return entry->kind == STREAM_DEVICE && entry->owner == context;
}

void streams_ended(context_t context)
{
    struct entry entry;
    while (context != NULL && table_take_match(is_stream_of, context, &entry))
        ;
    forget_captures_of(context);
    reclaim_context_ended(context);
}

void after_context_ended(context_t context, struct card_use use_before)
{
    streams_ended(context);
    struct entry shared_total = charge_shared_again(context);
    int opened_count = take_opened_count(context);
    refund_context(context);
    pools_context_ended(context);
    use_before.process_bytes -= exported_pool_bytes();
    settle_shared_context(&shared_total, use_before);
    /* Memory that ended processes shared may be given back then: its bytes are part of what this process lost. */
    if (opened_count > 0)
        report_opened(-opened_count);
    context_over(context);
}

/* By device: streams that were made and not destroyed, also if their context ended; and the largest number so far. */
static struct {
    atomic_uint live_count, peak_count;
} streams[HETERO_MAX_DEVICES];

void stream_made(int device)
{
    unsigned live_count = atomic_fetch_add(&streams[device].live_count, 1) + 1,
             peak_count = atomic_load(&streams[device].peak_count);
    while (live_count > peak_count &&
           !atomic_compare_exchange_weak(&streams[device].peak_count, &peak_count, live_count))
        ;
}

bool stream_takes_more(int device)
{
    unsigned peak_count = atomic_load(&streams[device].peak_count);
    return peak_count % STREAMS_PER_BLOCK == 0 && atomic_load(&streams[device].live_count) >= peak_count;
}

static void stream_ended(int device)
{
    unsigned live_count = device < 0 ? 0 : atomic_load(&streams[device].live_count);
    while (live_count > 0 && !atomic_compare_exchange_weak(&streams[device].live_count, &live_count, live_count - 1))
        ;
}

result_t destroy_stream(result_t (*real)(stream_t), stream_t stream)
{
    struct entry entry;
    int stream_device = device_of_stream(stream); /* before its entry is taken out below: the call may add that */
    gates_before_stream_ends(stream);
    table_take(STREAM_DEVICE, (uintptr_t)stream, &entry);
    pools_stream_ended(stream);
    if (!FAULT(stream_ends_keep_frees))
        reclaim_stream_ended(stream);
    result_t answer = real(stream);
    if (answer == RESULT_OK) {
        stream_ended(stream_device);
        forget_capture((uintptr_t)stream); /* its end never came */
    }
    return answer;
}
