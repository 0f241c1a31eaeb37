/* What was freed in the order of a stream: an event in the stream tells when it is back (room.h). */
#include "room.h"

#include "capturing.h"
#include "charge.h"
#include "cuda_engine.h"
#include "device.h"
#include "driver.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define PATIENCE_NS UINT64_C(1000000000)
#define LOOK_NS     1000000

struct freed {
    struct entry entry;
    CUevent event;
    CUcontext context; /* the stream's, which the event ends with, and the waiting */
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
static CUevent event_in(CUstream stream, CUcontext *of)
{
    CUevent event = NULL;
    CUcontext context = context_current();
    bool special = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    if (!special &&
        (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS))
        return NULL;
    *of = context;
    if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    else if (REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    if (!special)
        REAL(cuCtxPopCurrent_v2)(&context);
    return event;
}

void free_in_order(const struct entry *entry, CUstream stream)
{
    CUstreamCaptureMode mode = relax_captures();
    struct freed *freed = malloc(sizeof *freed);
    CUcontext context = NULL;
    CUevent event = freed == NULL ? NULL : event_in(stream, &context);
    if (event == NULL) { /* then it is waited for */
        REAL(cuStreamSynchronize)(stream);
        give_back(entry);
        free(freed);
    } else {
        pthread_mutex_lock(&counting);
        *freed = (struct freed){.entry = *entry, .event = event, .context = context, .next = list};
        list = freed;
        atomic_fetch_add(&pending, 1);
        pthread_mutex_unlock(&counting);
    }
    restore_captures(mode);
}

/* Take out what is back: whose event has passed; whose context ended, or its stream's. */
static struct freed *take(CUcontext over)
{
    struct freed *taken = NULL;
    pthread_mutex_lock(&counting);
    for (struct freed **at = &list; *at != NULL;) {
        struct freed *freed = *at;
        bool ended = freed->entry.owner == over || freed->context == over;
        if (over != NULL ? !ended : REAL(cuEventQuery)(freed->event) != CUDA_SUCCESS) {
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
            REAL(cuEventDestroy_v2)(taken->event);
        give_back(&taken->entry);
        free(taken);
    }
}

void room_settle(void)
{
    if (atomic_load_explicit(&pending, memory_order_relaxed) == 0)
        return;
    CUstreamCaptureMode mode = relax_captures();
    give_all_back(take(NULL), true);
    restore_captures(mode);
}

void room_context_over(CUcontext context)
{
    if (context != NULL && atomic_load_explicit(&pending, memory_order_relaxed) > 0)
        give_all_back(take(context), false);
}

void make_room(int device, uint64_t bytes)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    for (uint64_t waited = 0; waited < PATIENCE_NS; waited += LOOK_NS) {
        room_settle();
        if (pools_known())
            pools_trim(device);
        if (charge_fits(device, bytes) ||
            (atomic_load_explicit(&pending, memory_order_relaxed) == 0 && !pools_pending(device)))
            return;
        nanosleep(&look, NULL);
    }
}
