/* Knows the limiter's own events by their handles, and answers calls that name one (events.h). A fence that a program
 * destroys, or records anew elsewhere, would seem to have passed while the device works. */
#include "events.h"

#include "bodies.h"
#include "driver.h"
#include "held.h"

#include "../core/fault.h"

#include <stdatomic.h>
#include <stdint.h>

/* How many own events have a handle of this hash. Most handles of programs have none, and are not searched for. */
#define HASHES 4096u
static _Atomic uint16_t event_counts[HASHES];

static _Atomic uint16_t *count_of(event_t event)
{
    return &event_counts[((uint64_t)(uintptr_t)event * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}

result_t create_own_event(event_t *event, unsigned flags)
{
    result_t answer = DRIVER(EventCreate)(event, flags);
    if (answer != RESULT_OK)
        return answer;
    struct entry own = {.key = (uintptr_t)*event, .kind = OWN_EVENT}, previous;
    if (!FAULT(own_events_named) && table_put(&own, &previous) && previous.kind == 0)
        atomic_fetch_add(count_of(*event), 1);
    return RESULT_OK;
}

void forget_own_event(event_t event)
{
    struct entry own;
    if (table_take(OWN_EVENT, (uintptr_t)event, &own))
        atomic_fetch_sub(count_of(event), 1);
}

void destroy_own_event(event_t event)
{
    forget_own_event(event); /* first: the driver may give its handle to the program at once */
    DRIVER(EventDestroy_v2)(event);
}

bool is_own_event(event_t event)
{
    struct entry own;
    return atomic_load_explicit(count_of(event), memory_order_relaxed) != 0 &&
           table_get(OWN_EVENT, (uintptr_t)event, &own);
}

/* ------------------------------------------------------------------------------------------------- the program's calls
 */

result_t program_destroys_event(result_t (*real)(event_t), event_t event)
{
    return is_own_event(event) ? ERROR(INVALID_HANDLE) : real(event);
}

result_t program_records_event(result_t (*real)(event_t, stream_t), stream_t null_stream, event_t event,
                               stream_t stream)
{
    (void)null_stream;
    return is_own_event(event) ? ERROR(INVALID_HANDLE) : real(event, stream);
}

result_t program_records_event_with(result_t (*real)(event_t, stream_t, unsigned), stream_t null_stream, event_t event,
                                    stream_t stream, unsigned flags)
{
    (void)null_stream;
    return is_own_event(event) ? ERROR(INVALID_HANDLE) : real(event, stream, flags);
}
