/* The time sharing's calls of the driver (../timeshare/engine.h). Fences are events without timing. */
#include "../timeshare/engine.h"

#include "capturing.h"
#include "device.h"
#include "driver.h"
#include "events.h"

#include "holds.h"
#include "management.h"

#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Falling asleep and waking takes longer than this, so shorter pauses spin. */
#define AWAKE_NS UINT64_C(5000)

static void pause_ns(uint64_t ns)
{
    if (ns < AWAKE_NS) {
        for (uint64_t start_ns = now_ns(); now_ns() - start_ns < ns;)
            ;
        return;
    }
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&pause, NULL);
}

/* Called once in the governor's thread, which makes only the engine's calls: all of them are nested. */
static void begin(void)
{
    work_begins();
    relax_captures();
}

static void *stream_context(void *stream)
{
    work_begins();
    TYPE(streamCaptureMode) capture_mode = relax_captures();
    context_t context = context_of_stream(stream);
    restore_captures(capture_mode);
    work_ends();
    return context;
}

/* An event, and the context it must be used in. */
struct fence {
    event_t event;
    context_t context;
};

struct thread_state { /* where the calling thread was */
    context_t context;
    TYPE(streamCaptureMode) capture_mode;
};

/* Make a fence's context current: the governor's thread has none, and a launching thread may have another one. */
static bool enter(context_t context, struct thread_state *state)
{
    work_begins();
    if (enter_context(context, &state->context)) {
        state->capture_mode = relax_captures();
        return true;
    }
    work_ends();
    return false;
}

static void leave(const struct thread_state *state)
{
    restore_captures(state->capture_mode);
    leave_context(state->context);
    work_ends();
}

static void *make_fence(void *context)
{
    struct thread_state state;
    struct fence *fence = malloc(sizeof *fence);
    if (fence == NULL || !enter(context, &state)) {
        free(fence);
        return NULL;
    }
    fence->context = context;
    result_t answer = create_own_event(&fence->event, VALUE(EVENT_DISABLE_TIMING));
    leave(&state);
    if (answer == RESULT_OK)
        return fence;
    free(fence);
    return NULL;
}

static void forget_fence(void *argument)
{
    forget_own_event(((struct fence *)argument)->event);
    free(argument);
}

static void drop_fence(void *argument)
{
    struct thread_state state;
    struct fence *fence = argument;
    if (enter(fence->context, &state)) {
        destroy_own_event(fence->event);
        leave(&state);
    }
    forget_fence(fence);
}

/* Whether an error is about a capture; their codes are consecutive. A capture may begin after stream_is_capturing(). */
static bool is_of_capture(result_t answer)
{
    return answer >= ERROR(STREAM_CAPTURE_UNSUPPORTED) && answer <= ERROR(CAPTURED_EVENT);
}

/* False: the stream is being captured. After any other error the event counts as passed. */
static bool set_fence(void *argument, void *stream)
{
    struct thread_state state;
    struct fence *fence = argument;
    if (!enter(fence->context, &state))
        return true;
    bool is_captured = stream_is_capturing(stream) ||
                       is_of_capture(DRIVER(EventRecord)(fence->event, STREAM_NAMED((stream_t)stream)));
    leave(&state);
    return !is_captured;
}

/* One that somebody destroyed all the same counts as work. After other errors the context's work is over. */
static bool fence_passed(void *argument)
{
    struct thread_state state;
    struct fence *fence = argument;
    if (!enter(fence->context, &state))
        return true;
    result_t answer = QUERY_EVENT(fence->event);
    bool has_passed = answer != ERROR(NOT_READY) && answer != ERROR(INVALID_HANDLE);
    leave(&state);
    return has_passed;
}

static bool device_name(const char *uuid, char *name, size_t size_bytes)
{
    int device = tenant_device_named(uuid);
    work_begins();
    bool is_known = device >= 0 && device_model(device, name, size_bytes);
    work_ends();
    return is_known;
}

const struct engine driver_engine = {
    .now = now_ns,
    .pause = pause_ns,
    .begin = begin,
    .stream_context = stream_context,
    .make = make_fence,
    .drop = drop_fence,
    .forget = forget_fence,
    .set = set_fence,
    .passed = fence_passed,
    ENGINE_HOLDS.device_name = device_name,
    .power = management_power,
};
