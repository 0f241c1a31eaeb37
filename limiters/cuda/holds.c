/* Holds a stream by a word of the host that it waits for (holds.h). */
#include "holds.h"

#include "../shared/capturing.h"
#include "../shared/device.h"
#include "../shared/driver.h"

#include <stdlib.h>

/* A word in memory of the host that the device reads, and the events on both sides of what is held. */
struct held_stream {
    CUcontext context;
    CUevent begun, ended;
    _Atomic uint32_t *word;
    CUdeviceptr address;
    _Atomic uint32_t holds;
};

struct place {
    CUcontext before;
    CUstreamCaptureMode mode;
};

static bool enter(const struct held_stream *hold, struct place *place)
{
    if (!enter_context(hold->context, &place->before))
        return false;
    place->mode = relax_captures();
    return true;
}

static void leave(const struct place *place)
{
    restore_captures(place->mode);
    leave_context(place->before);
}

/* The word's memory can be used in all contexts, and mapped. */
#define WORD_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)

static bool make_parts(struct held_stream *hold)
{
    void *word = NULL;
    if (DRIVER(StreamWaitValue32_v2) == NULL || DRIVER(MemHostAlloc)(&word, sizeof *hold->word, WORD_FLAGS) != 0)
        return false;
    hold->word = word;
    *hold->word = 0;
    return DRIVER(MemHostGetDevicePointer_v2)(&hold->address, word, 0) == CUDA_SUCCESS &&
           DRIVER(EventCreate)(&hold->begun, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
           DRIVER(EventCreate)(&hold->ended, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
}

static void drop_parts(struct held_stream *hold)
{
    if (hold->begun != NULL)
        DRIVER(EventDestroy_v2)(hold->begun);
    if (hold->ended != NULL)
        DRIVER(EventDestroy_v2)(hold->ended);
    if (hold->word != NULL)
        DRIVER(MemFreeHost)((void *)hold->word);
}

void *make_hold(void *context)
{
    struct place place;
    struct held_stream *hold = calloc(1, sizeof *hold);
    if (hold == NULL)
        return NULL;
    hold->context = context;
    bool made = false;
    if (enter(hold, &place)) {
        made = make_parts(hold);
        if (!made)
            drop_parts(hold);
        leave(&place);
    }
    if (made)
        return hold;
    free(hold);
    return NULL;
}

void drop_hold(void *hold_)
{
    struct place place;
    struct held_stream *hold = hold_;
    if (enter(hold, &place)) {
        drop_parts(hold);
        leave(&place);
    }
    free(hold);
}

bool hold_stream(void *hold_, void *stream)
{
    struct place place;
    struct held_stream *hold = hold_;
    if (!enter(hold, &place))
        return false;
    uint32_t number = atomic_fetch_add(&hold->holds, 1) + 1; /* before it, so that a release is of this one */
    bool held = !stream_is_capturing(stream) &&
                DRIVER(StreamWaitValue32_v2)(stream, hold->address, number, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
    if (held)
        DRIVER(EventRecord)(hold->begun, stream);
    leave(&place);
    return held;
}

void stamp_stream(void *hold_, void *stream)
{
    struct place place;
    struct held_stream *hold = hold_;
    if (!enter(hold, &place))
        return;
    DRIVER(EventRecord)(hold->ended, stream);
    leave(&place);
}

void release_stream(void *hold_)
{
    struct held_stream *hold = hold_;
    atomic_store(hold->word, atomic_load(&hold->holds));
}

bool stream_held_ns(void *hold_, uint64_t *ns)
{
    float ms = 0;
    struct place place;
    struct held_stream *hold = hold_;
    *ns = 0;
    if (!enter(hold, &place))
        return true;
    bool passed = DRIVER(EventQuery)(hold->ended) != CUDA_ERROR_NOT_READY;
    if (passed && DRIVER(EventElapsedTime)(&ms, hold->begun, hold->ended) == CUDA_SUCCESS)
        *ns = (uint64_t)(ms * 1e6F);
    leave(&place);
    return passed;
}
