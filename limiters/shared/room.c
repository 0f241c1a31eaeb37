/* What was freed in the order of a stream: an event in the stream tells when it is back (room.h). */
#include "room.h"

#include "blocks.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "pools.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define PATIENCE_NS UINT64_C(1000000000)
#define LOOK_NS     1000000

struct freed {
    struct entry entry;
    event_t event;
    context_t context; /* the stream's, which the event ends with, and the waiting */
    stream_t stream;   /* NULL: it was destroyed before it had passed */
    struct freed *next;
};

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct freed *list;
static atomic_uint pending; /* how many are on it */

void room_after_fork(void)
{
    counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    list = NULL;
    atomic_store(&pending, 0);
}

/* An event of the stream's own context, recorded there; NULL: none can be had. */
static event_t event_in(stream_t stream, context_t *of)
{
    event_t event = NULL;
    context_t before;
    bool special = stream == STREAM_LEGACY || stream == STREAM_PER_THREAD;
    *of = special ? context_current() : context_of_stream(stream);
    if (!enter_context(*of, &before))
        return NULL;
    if (DRIVER(EventCreate)(&event, VALUE(EVENT_DISABLE_TIMING)) != RESULT_OK) {
        event = NULL;
    } else if (DRIVER(EventRecord)(event, STREAM_NAMED(stream)) != RESULT_OK) {
        DRIVER(EventDestroy_v2)(event);
        event = NULL;
    }
    leave_context(before);
    return event;
}

void free_in_order(const struct entry *entry, stream_t stream)
{
    TYPE(streamCaptureMode) mode = relax_captures();
    struct freed *freed = malloc(sizeof *freed);
    context_t context = NULL;
    event_t event = FREES_WAIT || freed == NULL ? NULL : event_in(stream, &context);
    if (event == NULL) { /* then it is waited for */
        DRIVER(StreamSynchronize)(STREAM_NAMED(stream));
        give_back(entry);
        free(freed);
    } else {
        pthread_mutex_lock(&counting);
        *freed = (struct freed){.entry = *entry, .event = event, .context = context, .stream = stream, .next = list};
        list = freed;
        atomic_fetch_add(&pending, 1);
        pthread_mutex_unlock(&counting);
    }
    restore_captures(mode);
}

uint64_t freed_in_order(int device)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&counting);
    for (const struct freed *freed = list; freed != NULL; freed = freed->next)
        bytes += freed->entry.device == device ? freed->entry.bytes : 0;
    pthread_mutex_unlock(&counting);
    return bytes;
}

/* Whether a stream has come past it. The driver itself keeps what cuMemAlloc took until somebody waits for the event or
 * its stream (measured on an NVIDIA H100, driver 580.159.04); such a wait ends at once. */
static bool is_back(const struct freed *freed)
{
    return DRIVER(EventQuery)(freed->event) == RESULT_OK && DRIVER(EventSynchronize)(freed->event) == RESULT_OK;
}

/* Take out what is back: whose event has passed; whose context ended, or its stream's. */
static struct freed *take(context_t over)
{
    struct freed *taken = NULL;
    pthread_mutex_lock(&counting);
    for (struct freed **at = &list; *at != NULL;) {
        struct freed *freed = *at;
        bool ended = freed->entry.owner == over || freed->context == over;
        if (over != NULL ? !ended : !is_back(freed) && !FAULT(frees_believed_early)) {
            at = &freed->next;
            continue;
        }
        *at = freed->next;
        freed->next = taken;
        taken = freed;
        atomic_fetch_sub(&pending, 1);
    }
    pthread_mutex_unlock(&counting);
    return taken;
}

static void give_all_back(struct freed *taken, bool destroy)
{
    for (struct freed *next; taken != NULL; taken = next) {
        next = taken->next;
        if (destroy)
            DRIVER(EventDestroy_v2)(taken->event);
        give_back(&taken->entry);
        free(taken);
    }
}

/* What waited for a stream that was destroyed may be on the card still (an NVIDIA H100 had 16 MiB then that nobody was
 * charged for, driver 580.159.04, 2026-11-25): the process's figure tells, and it is charged again. */
void room_settle(void)
{
    unsigned devices = 0;
    if (atomic_load_explicit(&pending, memory_order_relaxed) == 0)
        return;
    TYPE(streamCaptureMode) mode = relax_captures();
    struct freed *taken = take(NULL);
    for (const struct freed *freed = taken; freed != NULL; freed = freed->next)
        devices |= freed->stream == NULL ? 1u << freed->entry.device : 0;
    give_all_back(taken, true);
    restore_captures(mode);
    for (int device = 0; devices >> device != 0; device++)
        if (devices >> device & 1)
            uncounted_settle(device);
}

void room_stream_over(stream_t stream)
{
    if (atomic_load_explicit(&pending, memory_order_relaxed) == 0)
        return;
    TYPE(streamCaptureMode) mode = relax_captures();
    bool passed = DRIVER(StreamQuery)(stream) == RESULT_OK && DRIVER(StreamSynchronize)(stream) == RESULT_OK;
    restore_captures(mode);
    pthread_mutex_lock(&counting);
    for (struct freed *freed = list; freed != NULL && !passed; freed = freed->next)
        freed->stream = freed->stream == stream ? NULL : freed->stream;
    pthread_mutex_unlock(&counting);
}

void room_context_over(context_t context)
{
    if (context != NULL && atomic_load_explicit(&pending, memory_order_relaxed) > 0)
        give_all_back(take(context), false);
}

void make_room(int device, uint64_t bytes)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    for (uint64_t waited = 0; waited < PATIENCE_NS; waited += LOOK_NS) {
        room_settle();
        if (blocks_trim(device) && charge_fits(device, bytes))
            return;
        if (pools_known())
            pools_trim(device);
        blocks_trim(device); /* those that pools had */
        if (charge_fits(device, bytes) ||
            (atomic_load_explicit(&pending, memory_order_relaxed) == 0 && !pools_pending(device)))
            return;
        nanosleep(&look, NULL);
    }
}
