/* Fences are CUDA events without timing, and the limiter's own calls stay out of captures (cuda_engine.h). */
#include "cuda_engine.h"

#include "capturing.h"
#include "device.h"
#include "driver.h"

#include "../nvml/shim.h"

#include <stdlib.h>
#include <time.h>

CUstreamCaptureMode relax_captures(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    typeof(&cuThreadExchangeStreamCaptureMode) exchange = REAL(cuThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&mode);
    return mode;
}

void restore_captures(CUstreamCaptureMode mode)
{
    typeof(&cuThreadExchangeStreamCaptureMode) exchange = REAL(cuThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&mode);
}

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

static void begin(void)
{
    relax_captures();
}

static void *stream_context(void *stream)
{
    CUcontext context = NULL;
    CUstreamCaptureMode mode = relax_captures();
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        context = context_current();
    restore_captures(mode);
    return context;
}

/* An event, and the context it must be used in. */
struct fence {
    CUevent event;
    CUcontext context;
};

/* The governor's thread has no context of its own, and a launcher's may be another. */
static bool enter(CUcontext context, CUstreamCaptureMode *mode)
{
    if (context == NULL || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    *mode = relax_captures();
    return true;
}

static void leave(CUstreamCaptureMode mode)
{
    CUcontext context;
    restore_captures(mode);
    REAL(cuCtxPopCurrent_v2)(&context);
}

static void *make_fence(void *context)
{
    CUstreamCaptureMode mode;
    struct fence *fence = malloc(sizeof *fence);
    if (fence == NULL || !enter(context, &mode)) {
        free(fence);
        return NULL;
    }
    fence->context = context;
    CUresult answer = REAL(cuEventCreate)(&fence->event, CU_EVENT_DISABLE_TIMING);
    leave(mode);
    if (answer == CUDA_SUCCESS)
        return fence;
    free(fence);
    return NULL;
}

static void drop_fence(void *fence_)
{
    CUstreamCaptureMode mode;
    struct fence *fence = fence_;
    if (enter(fence->context, &mode)) {
        REAL(cuEventDestroy_v2)(fence->event);
        leave(mode);
    }
    free(fence);
}

/* The errors about captures follow one another. One may begin after it was asked whether there is any. */
static bool is_of_capture(CUresult answer)
{
    return answer >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && answer <= CUDA_ERROR_CAPTURED_EVENT;
}

/* An event that could not be recorded for another reason than a capture is one that has passed. */
static bool set_fence(void *fence_, void *stream)
{
    CUstreamCaptureMode mode;
    struct fence *fence = fence_;
    if (!enter(fence->context, &mode))
        return true;
    bool captured = stream_capturing(stream) || is_of_capture(REAL(cuEventRecord)(fence->event, stream));
    leave(mode);
    return !captured;
}

static bool fence_passed(void *fence_)
{
    CUstreamCaptureMode mode;
    struct fence *fence = fence_;
    if (!enter(fence->context, &mode))
        return true;
    bool passed = REAL(cuEventQuery)(fence->event) != CUDA_ERROR_NOT_READY;
    leave(mode);
    return passed;
}

static bool device_name(const char *uuid, char *name, size_t size)
{
    typeof(&cuDeviceGetName) get = REAL(cuDeviceGetName);
    int device = tenant_device_named(uuid);
    return get != NULL && device >= 0 && get(name, (int)size, ordinal_of(device)) == CUDA_SUCCESS;
}

const struct engine cuda_engine = {
    .now = now,
    .pause = pause_ns,
    .begin = begin,
    .stream_context = stream_context,
    .make = make_fence,
    .drop = drop_fence,
    .set = set_fence,
    .passed = fence_passed,
    .device_name = device_name,
    .power = nvml_power,
};
