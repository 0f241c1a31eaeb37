/* Gives back memory that was freed in the order of a stream, once an event in the stream has passed (reclaim.h). */
#include "reclaim.h"

#include "blocks.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "events.h"
#include "pools.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define MAX_WAIT_NS UINT64_C(1000000000)
#define POLL_NS     1000000

/* One free that its stream has not passed yet. */
struct freed {
    struct entry entry; /* of the freed memory, still charged */
    event_t event;      /* recorded behind the free */
    context_t context;  /* of the stream; the event ends with it */
    stream_t stream;    /* NULL: it was destroyed before it had passed */
    struct freed *next;
};

static pthread_mutex_t freed_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct freed *freed_list;
static atomic_uint freed_count; /* length of the list */

void reclaim_after_fork(void)
{
    freed_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    freed_list = NULL;
    atomic_store(&freed_count, 0);
}

/* An event of the stream's context, recorded in the stream; NULL: it cannot be made. */
static event_t record_event(stream_t stream, context_t *context)
{
    event_t event = NULL;
    context_t previous_context;
    bool is_default_stream = stream == STREAM_LEGACY || stream == STREAM_PER_THREAD;
    *context = is_default_stream ? context_current() : context_of_stream(stream);
    if (!enter_context(*context, &previous_context))
        return NULL;
    if (create_own_event(&event, VALUE(EVENT_DISABLE_TIMING)) != RESULT_OK) {
        event = NULL;
    } else if (DRIVER(EventRecord)(event, STREAM_NAMED(stream)) != RESULT_OK) {
        destroy_own_event(event);
        event = NULL;
    }
    leave_context(previous_context);
    return event;
}

void free_in_order(const struct entry *entry, stream_t stream)
{
    TYPE(streamCaptureMode) capture_mode = relax_captures();
    struct freed *freed = malloc(sizeof *freed);
    context_t context = NULL;
    event_t event = FREES_WAIT || freed == NULL ? NULL : record_event(stream, &context);
    if (event == NULL) { /* without an event the stream is waited for */
        DRIVER(StreamSynchronize)(STREAM_NAMED(stream));
        give_back(entry);
        free(freed);
    } else {
        pthread_mutex_lock(&freed_mutex);
        *freed =
            (struct freed){.entry = *entry, .event = event, .context = context, .stream = stream, .next = freed_list};
        freed_list = freed;
        atomic_fetch_add(&freed_count, 1);
        pthread_mutex_unlock(&freed_mutex);
    }
    restore_captures(capture_mode);
}

uint64_t freed_in_order_bytes(int device)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&freed_mutex);
    for (const struct freed *freed = freed_list; freed != NULL; freed = freed->next)
        bytes += freed->entry.device == device ? freed->entry.bytes : 0;
    pthread_mutex_unlock(&freed_mutex);
    return bytes;
}

/* Whether the stream has passed the free. The driver keeps memory of cuMemAlloc until a thread waits for the event or
 * its stream (measured on an NVIDIA H100, driver 580.159.04). That wait returns at once. */
static bool is_returned(const struct freed *freed)
{
    return DRIVER(EventQuery)(freed->event) == RESULT_OK && DRIVER(EventSynchronize)(freed->event) == RESULT_OK;
}

/* Take frees off the list: those of `ended_context`, or if it is NULL those whose event has passed. */
static struct freed *take_returned(context_t ended_context)
{
    struct freed *returned_list = NULL;
    pthread_mutex_lock(&freed_mutex);
    for (struct freed **link = &freed_list; *link != NULL;) {
        struct freed *freed = *link;
        bool is_ended = freed->entry.owner == ended_context || freed->context == ended_context;
        if (ended_context != NULL ? !is_ended : !is_returned(freed) && !FAULT(frees_believed_early)) {
            link = &freed->next;
            continue;
        }
        *link = freed->next;
        freed->next = returned_list;
        returned_list = freed;
        atomic_fetch_sub(&freed_count, 1);
    }
    pthread_mutex_unlock(&freed_mutex);
    return returned_list;
}

static void give_back_list(struct freed *returned_list, bool destroys_events)
{
    for (struct freed *next; returned_list != NULL; returned_list = next) {
        next = returned_list->next;
        if (destroys_events)
            destroy_own_event(returned_list->event);
        else
            forget_own_event(returned_list->event);
        give_back(&returned_list->entry);
        free(returned_list);
    }
}

/* Memory that waited for a destroyed stream may still be on the card (an NVIDIA H100 had 16 MiB then that nobody was
 * charged for, driver 580.159.04, 2026-11-25). The driver's figure tells, and it is charged again. */
void reclaim_settle(void)
{
    unsigned device_bits = 0;
    if (atomic_load_explicit(&freed_count, memory_order_relaxed) == 0)
        return;
    TYPE(streamCaptureMode) capture_mode = relax_captures();
    struct freed *returned_list = take_returned(NULL);
    for (const struct freed *freed = returned_list; freed != NULL; freed = freed->next)
        device_bits |= freed->stream == NULL ? 1u << freed->entry.device : 0;
    give_back_list(returned_list, true);
    restore_captures(capture_mode);
    for (int device = 0; device_bits >> device != 0; device++)
        if (device_bits >> device & 1)
            uncounted_settle(device);
}

void reclaim_stream_ended(stream_t stream)
{
    if (atomic_load_explicit(&freed_count, memory_order_relaxed) == 0)
        return;
    TYPE(streamCaptureMode) capture_mode = relax_captures();
    bool has_passed = DRIVER(StreamQuery)(stream) == RESULT_OK && DRIVER(StreamSynchronize)(stream) == RESULT_OK;
    restore_captures(capture_mode);
    pthread_mutex_lock(&freed_mutex);
    for (struct freed *freed = freed_list; freed != NULL && !has_passed; freed = freed->next)
        freed->stream = freed->stream == stream ? NULL : freed->stream;
    pthread_mutex_unlock(&freed_mutex);
}

void reclaim_context_ended(context_t context)
{
    if (context != NULL && atomic_load_explicit(&freed_count, memory_order_relaxed) > 0)
        give_back_list(take_returned(context), false);
}

void reclaim_freed(int device, uint64_t bytes)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    for (uint64_t waited_ns = 0; waited_ns < MAX_WAIT_NS; waited_ns += POLL_NS) {
        reclaim_settle();
        if (blocks_trim(device) && charge_fits(device, bytes))
            return;
        if (pools_known())
            pools_trim(device);
        blocks_trim(device); /* again, for blocks that pools had */
        if (charge_fits(device, bytes) ||
            (atomic_load_explicit(&freed_count, memory_order_relaxed) == 0 && !pools_pending(device)))
            return;
        nanosleep(&poll, NULL);
    }
}
