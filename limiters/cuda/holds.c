/* Holds a stream by a word of the host that it waits for (holds.h). */
#include "holds.h"

#include "../shared/capturing.h"
#include "../shared/device.h"
#include "../shared/driver.h"

#include <stdlib.h>

/* A word in memory of the host that the device reads, and the events on both sides of what is held. */
struct held_stream {
    CUcontext context;
    CUevent begun_event, ended_event;
    _Atomic uint32_t *released_count;
    CUdeviceptr device_address;
    _Atomic uint32_t hold_count;
};

struct thread_state {
    CUcontext context;
    CUstreamCaptureMode capture_mode;
};

static bool enter(const struct held_stream *hold, struct thread_state *state)
{
    if (!enter_context(hold->context, &state->context))
        return false;
    state->capture_mode = relax_captures();
    return true;
}

static void leave(const struct thread_state *state)
{
    restore_captures(state->capture_mode);
    leave_context(state->context);
}

/* The word's memory can be used in all contexts, and mapped. */
#define WORD_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)

static bool make_parts(struct held_stream *hold)
{
    void *word = NULL;
    if (DRIVER(StreamWaitValue32_v2) == NULL ||
        DRIVER(MemHostAlloc)(&word, sizeof *hold->released_count, WORD_FLAGS) != 0)
        return false;
    hold->released_count = word;
    *hold->released_count = 0;
    return DRIVER(MemHostGetDevicePointer_v2)(&hold->device_address, word, 0) == CUDA_SUCCESS &&
           DRIVER(EventCreate)(&hold->begun_event, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
           DRIVER(EventCreate)(&hold->ended_event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
}

static void drop_parts(struct held_stream *hold)
{
    if (hold->begun_event != NULL)
        DRIVER(EventDestroy_v2)(hold->begun_event);
    if (hold->ended_event != NULL)
        DRIVER(EventDestroy_v2)(hold->ended_event);
    if (hold->released_count != NULL)
        DRIVER(MemFreeHost)((void *)hold->released_count);
}

void *make_hold(void *context)
{
    struct thread_state state;
    struct held_stream *hold = calloc(1, sizeof *hold);
    if (hold == NULL)
        return NULL;
    hold->context = context;
    bool is_made = false;
    if (enter(hold, &state)) {
        is_made = make_parts(hold);
        if (!is_made)
            drop_parts(hold);
        leave(&state);
    }
    if (is_made)
        return hold;
    free(hold);
    return NULL;
}

void drop_hold(void *argument)
{
    struct thread_state state;
    struct held_stream *hold = argument;
    if (enter(hold, &state)) {
        drop_parts(hold);
        leave(&state);
    }
    free(hold);
}

bool hold_stream(void *argument, void *stream)
{
    struct thread_state state;
    struct held_stream *hold = argument;
    if (!enter(hold, &state))
        return false;
    uint32_t hold_number = atomic_fetch_add(&hold->hold_count, 1) + 1; /* before it, so that a release is of this one */
    bool is_held = !stream_is_capturing(stream) &&
                   DRIVER(StreamWaitValue32_v2)(stream, hold->device_address, hold_number, CU_STREAM_WAIT_VALUE_GEQ) ==
                       CUDA_SUCCESS;
    if (is_held)
        DRIVER(EventRecord)(hold->begun_event, stream);
    leave(&state);
    return is_held;
}

void stamp_stream(void *argument, void *stream)
{
    struct thread_state state;
    struct held_stream *hold = argument;
    if (!enter(hold, &state))
        return;
    DRIVER(EventRecord)(hold->ended_event, stream);
    leave(&state);
}

void release_stream(void *argument)
{
    struct held_stream *hold = argument;
    atomic_store(hold->released_count, atomic_load(&hold->hold_count));
}

bool stream_held_ns(void *argument, uint64_t *held_ns)
{
    float elapsed_ms = 0;
    struct thread_state state;
    struct held_stream *hold = argument;
    *held_ns = 0;
    if (!enter(hold, &state))
        return true;
    bool has_passed = DRIVER(EventQuery)(hold->ended_event) != CUDA_ERROR_NOT_READY;
    if (has_passed && DRIVER(EventElapsedTime)(&elapsed_ms, hold->begun_event, hold->ended_event) == CUDA_SUCCESS)
        *held_ns = (uint64_t)(elapsed_ms * 1e6F);
    leave(&state);
    return has_passed;
}
