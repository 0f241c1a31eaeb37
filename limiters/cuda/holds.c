/* Stalls a stream by a wait for a word in host memory (holds.h). */
#include "holds.h"

#include "../shared/capturing.h"
#include "../shared/device.h"
#include "../shared/driver.h"
#include "../shared/events.h"

#include <stdlib.h>

/* Stalls of one context's streams, one at a time. A stalled stream waits for its sequence number in a word of host
 * memory. Events before and behind the stalled work tell how long it ran. */
struct held_stream {
    CUcontext context;        /* in which all calls are made */
    CUevent work_start_event; /* recorded after the wait: the stalled work starts */
    CUevent work_end_event;   /* recorded after the stalled work */
    /* In host memory, the value that streams wait for: stalls up to this sequence number may go on. */
    _Atomic uint32_t *released_sequence;
    CUdeviceptr device_address;     /* of released_sequence, as the device has it */
    _Atomic uint32_t last_sequence; /* the sequence number of the last stall */
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
        DRIVER(MemHostAlloc)(&word, sizeof *hold->released_sequence, WORD_FLAGS) != 0)
        return false;
    hold->released_sequence = word;
    *hold->released_sequence = 0;
    return DRIVER(MemHostGetDevicePointer_v2)(&hold->device_address, word, 0) == CUDA_SUCCESS &&
           create_own_event(&hold->work_start_event, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
           create_own_event(&hold->work_end_event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
}

static void drop_parts(struct held_stream *hold)
{
    if (hold->work_start_event != NULL)
        destroy_own_event(hold->work_start_event);
    if (hold->work_end_event != NULL)
        destroy_own_event(hold->work_end_event);
    if (hold->released_sequence != NULL)
        DRIVER(MemFreeHost)((void *)hold->released_sequence);
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
    forget_own_event(hold->work_start_event); /* where the context is gone, they are, too */
    forget_own_event(hold->work_end_event);
    free(hold);
}

bool hold_stream(void *argument, void *stream, bool stalls)
{
    struct thread_state state;
    struct held_stream *hold = argument;
    if (!enter(hold, &state))
        return false;
    /* Before the wait, so that a release includes this stall. */
    uint32_t sequence = atomic_fetch_add(&hold->last_sequence, 1) + 1;
    bool is_held = !stream_is_capturing(stream) &&
                   (!stalls || DRIVER(StreamWaitValue32_v2)(stream, hold->device_address, sequence,
                                                            CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    if (is_held)
        DRIVER(EventRecord)(hold->work_start_event, stream);
    leave(&state);
    return is_held;
}

void stamp_stream(void *argument, void *stream)
{
    struct thread_state state;
    struct held_stream *hold = argument;
    if (!enter(hold, &state))
        return;
    DRIVER(EventRecord)(hold->work_end_event, stream);
    leave(&state);
}

void release_stream(void *argument)
{
    struct held_stream *hold = argument;
    atomic_store(hold->released_sequence, atomic_load(&hold->last_sequence));
}

bool stream_held_ns(void *argument, uint64_t *held_ns)
{
    float elapsed_ms = 0;
    struct thread_state state;
    struct held_stream *hold = argument;
    *held_ns = 0;
    if (!enter(hold, &state))
        return true;
    bool has_passed = DRIVER(EventQuery)(hold->work_end_event) != CUDA_ERROR_NOT_READY;
    if (has_passed &&
        DRIVER(EventElapsedTime)(&elapsed_ms, hold->work_start_event, hold->work_end_event) == CUDA_SUCCESS)
        *held_ns = (uint64_t)(elapsed_ms * 1e6F);
    leave(&state);
    return has_passed;
}
