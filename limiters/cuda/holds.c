/* Stalls a stream by a wait for a word in host memory (holds.h). */
#include "holds.h"

#include "../shared/capturing.h"
#include "../shared/device.h"
#include "../shared/driver.h"
#include "../shared/events.h"

#include <stdlib.h>

/* Stalls of one context's streams, one at a time. A stalled stream waits for the number of its stall in a word of host
 * memory. Events before and behind the stalled work tell how long it ran. */
struct held_stream {
    CUcontext context;                /* in which all calls are made */
    CUevent begun_event, ended_event; /* recorded behind the wait, and behind the stalled work */
    _Atomic uint32_t *released_count; /* in host memory: the number of the last stall that may go on */
    CUdeviceptr device_address;       /* of released_count, as the device has it */
    _Atomic uint32_t hold_count;      /* stalls so far: the number of the last one */
};

struct thread_state { /* of the calling thread, to be restored */
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

/* The word's memory can be used in all contexts, and is mapped for the device. */
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
           create_own_event(&hold->begun_event, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
           create_own_event(&hold->ended_event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
}

static void drop_parts(struct held_stream *hold)
{
    if (hold->begun_event != NULL)
        destroy_own_event(hold->begun_event);
    if (hold->ended_event != NULL)
        destroy_own_event(hold->ended_event);
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
    forget_own_event(hold->begun_event); /* where the context is gone, they are, too */
    forget_own_event(hold->ended_event);
    free(hold);
}

bool hold_stream(void *argument, void *stream, bool stalls)
{
    struct thread_state state;
    struct held_stream *hold = argument;
    if (!enter(hold, &state))
        return false;
    uint32_t hold_number = atomic_fetch_add(&hold->hold_count, 1) +
                           1; /* before the wait, so that a release includes this stall */
    bool is_held = !stream_is_capturing(stream) &&
                   (!stalls || DRIVER(StreamWaitValue32_v2)(stream, hold->device_address, hold_number,
                                                            CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
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
