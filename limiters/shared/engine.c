/* What the time sharing needs of the driver (../timeshare/engine.h): fences are events without timing. */
#include "../timeshare/engine.h"

#include "capturing.h"
#include "device.h"
#include "driver.h"

#include "holds.h"
#include "management.h"

#include <stdlib.h>
#include <time.h>

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* To fall asleep and wake takes longer than this: until then it is waited for awake. */
#define AWAKE_NS UINT64_C(5000)

static void pause_ns(uint64_t ns)
{
    if (ns < AWAKE_NS) {
        for (uint64_t since = now(); now() - since < ns;)
            ;
        return;
    }
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

/* The governor's thread calls nothing but the engine, which the program's calls may call, too. */
static void begin(void)
{
    work_begins();
    relax_captures();
}

static void *stream_context(void *stream)
{
    work_begins();
    TYPE(streamCaptureMode) mode = relax_captures();
    context_t context = context_of_stream(stream);
    restore_captures(mode);
    work_ends();
    return context;
}

/* An event, and the context it must be used in. */
struct fence {
    event_t event;
    context_t context;
};

struct place { /* where the calling thread was */
    context_t context;
    TYPE(streamCaptureMode) mode;
};

/* The governor's thread has no context of its own, and a launcher's may be another. */
static bool enter(context_t context, struct place *place)
{
    work_begins();
    if (enter_context(context, &place->context)) {
        place->mode = relax_captures();
        return true;
    }
    work_ends();
    return false;
}

static void leave(const struct place *place)
{
    restore_captures(place->mode);
    leave_context(place->context);
    work_ends();
}

static void *make_fence(void *context)
{
    struct place place;
    struct fence *fence = malloc(sizeof *fence);
    if (fence == NULL || !enter(context, &place)) {
        free(fence);
        return NULL;
    }
    fence->context = context;
    result_t answer = DRIVER(EventCreate)(&fence->event, VALUE(EVENT_DISABLE_TIMING));
    leave(&place);
    if (answer == RESULT_OK)
        return fence;
    free(fence);
    return NULL;
}

static void drop_fence(void *fence_)
{
    struct place place;
    struct fence *fence = fence_;
    if (enter(fence->context, &place)) {
        DRIVER(EventDestroy_v2)(fence->event);
        leave(&place);
    }
    free(fence);
}

/* The errors about captures follow one another. One may begin after it was asked whether there is any. */
static bool is_of_capture(result_t answer)
{
    return answer >= ERROR(STREAM_CAPTURE_UNSUPPORTED) && answer <= ERROR(CAPTURED_EVENT);
}

/* An event that could not be recorded for another reason than a capture is one that has passed. */
static bool set_fence(void *fence_, void *stream)
{
    struct place place;
    struct fence *fence = fence_;
    if (!enter(fence->context, &place))
        return true;
    bool captured = stream_capturing(stream) ||
                    is_of_capture(DRIVER(EventRecord)(fence->event, STREAM_NAMED((stream_t)stream)));
    leave(&place);
    return !captured;
}

static bool fence_passed(void *fence_)
{
    struct place place;
    struct fence *fence = fence_;
    if (!enter(fence->context, &place))
        return true;
    bool passed = DRIVER(EventQuery)(fence->event) != ERROR(NOT_READY);
    leave(&place);
    return passed;
}

static bool device_name(const char *uuid, char *name, size_t size)
{
    typeof(&FUNCTION(DeviceGetName)) get = DRIVER(DeviceGetName);
    int device = tenant_device_named(uuid);
    work_begins();
    bool known = get != NULL && device >= 0 && get(name, (int)size, ordinal_of(device)) == RESULT_OK;
    work_ends();
    return known;
}

const struct engine driver_engine = {
    .now = now,
    .pause = pause_ns,
    .begin = begin,
    .stream_context = stream_context,
    .make = make_fence,
    .drop = drop_fence,
    .forget = free,
    .set = set_fence,
    .passed = fence_passed,
    ENGINE_HOLDS.device_name = device_name,
    .power = management_power,
};
