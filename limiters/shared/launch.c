/* Has every launch, copy and fill pass the gate of its device's governor, unless it is being captured. */
#include "launch.h"

#include "device.h"
#include "recording.h"

#include "../core/fault.h"

/* The address of this variable identifies the thread, which has a per-thread default stream. */
static __thread char thread_identity;

struct stream_key stream_key(stream_t stream)
{
    struct stream_key key = {.stream = stream};
    if (stream == STREAM_LEGACY || stream == STREAM_PER_THREAD)
        key.context = context_current();
    if (stream == STREAM_PER_THREAD)
        key.thread = &thread_identity;
    return key;
}

bool launch_count_devices(void)
{
    if (tenancy() == TENANCY_FREE)
        atomic_store_explicit(&process.launch_device_count, NO_GRANT, memory_order_release);
    else if (tenancy() == TENANCY_HELD && all_devices_granted())
        atomic_store_explicit(&process.launch_device_count, (int)tenant_grant->device_count, memory_order_release);
    return launch_is_free();
}

static bool is_recorded(struct launch_ticket *ticket, stream_t stream)
{
    ticket->key.stream = stream;
    return recording_begins(stream, &ticket->abandoned_wait_count);
}

result_t launch_enter(struct launch_ticket *ticket, stream_t stream)
{
    ticket->governor = NULL;
    ticket->is_recorded = false;
    if (tenancy() == TENANCY_REFUSED)
        return RESULT_NOT_PERMITTED;
    int device = device_of_stream(stream);
    if (device < 0)
        return device == DEVICE_FOREIGN ? RESULT_NOT_PERMITTED : RESULT_OK;
    if (!terms_limit_core(tenant_terms(device)))
        return RESULT_OK;
    ticket->is_recorded = capturing() && is_recorded(ticket, stream);
    if (ticket->is_recorded)
        return RESULT_OK;
    struct governor *governor = governor_of(device);
    if (governor == NULL)
        return RESULT_NOT_PERMITTED;
    ticket->key = stream_key(stream);
    if (gate_enter(&governor->gate, &ticket->key))
        ticket->governor = governor;
    return RESULT_OK;
}

/* A launch that was not captured after all passes the gate after it was made. */
static __attribute__((noinline)) void leave_recorded(const struct launch_ticket *recorded_ticket, result_t answer)
{
    struct launch_ticket ticket;
    stream_t stream = recorded_ticket->key.stream;
    if (!recording_ends(stream, recorded_ticket->abandoned_wait_count) && answer == RESULT_OK &&
        launch_enter(&ticket, stream) == RESULT_OK)
        launch_leave(&ticket, RESULT_OK);
}

void launch_leave(const struct launch_ticket *ticket, result_t answer)
{
    if (ticket->governor != NULL && __builtin_expect(answer != RESULT_OK, 0) && !FAULT(failed_launch_as_others))
        gate_leave_failed(&ticket->governor->gate);
    else if (ticket->governor != NULL)
        gate_leave(&ticket->governor->gate, &ticket->key);
    else if (ticket->is_recorded)
        leave_recorded(ticket, answer);
}

/* Of an operation that waits, the governor to tell of it; NULL: nobody is to be told. */
static struct governor *told_of_wait(stream_t stream)
{
    int device = capturing() || tenancy() == TENANCY_REFUSED ? DEVICE_FOREIGN : device_of_stream(stream);
    return device < 0 || !terms_limit_core(tenant_terms(device)) ? NULL : governor_of(device);
}

static void begin_wait(struct wait_ticket *ticket, struct governor *governor, stream_t stream)
{
    struct stream_key key = stream_key(stream);
    bool known = governor != NULL && gate_begin_wait(&governor->gate, &key, &ticket->wait);
    ticket->governor = known ? governor : NULL;
}

void wait_enter(struct wait_ticket *ticket, stream_t stream)
{
    begin_wait(ticket, told_of_wait(stream), stream);
}

/* Whether the process has opened events of others. */
static atomic_bool has_shared_events;

result_t open_shared_event(result_t (*real)(event_t *, TYPE(ipcEventHandle)), event_t *event,
                           TYPE(ipcEventHandle) handle)
{
    result_t answer = real(event, handle);
    if (answer == RESULT_OK)
        atomic_store(&has_shared_events, true);
    return answer;
}

void event_wait_enter(struct wait_ticket *ticket, stream_t stream)
{
    struct governor *governor = told_of_wait(stream);
    if (governor != NULL && !atomic_load(&has_shared_events) && atomic_load(&governor->gate.streams.wait_count) == 0)
        governor = NULL;
    begin_wait(ticket, governor, stream);
}

void wait_leave(const struct wait_ticket *ticket, result_t answer)
{
    if (ticket->governor != NULL)
        gate_end_wait(&ticket->governor->gate, ticket->wait, answer == RESULT_OK);
}
