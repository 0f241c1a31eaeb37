/* Device work: every launch, copy and fill passes the gate of its device's governor, unless it is being captured. */
#include "shim.h"

#include "../core/log.h"
#include "../nvml/shim.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* One governor per device of the grant, made at its first limited launch under `making`, then constant. */
static _Atomic(struct governor *) governors[HETERO_MAX_DEVICES];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* A per-thread default stream is its thread's; the address of this tells threads apart. */
static __thread char thread_identity;

/* ------------------------------------------------------------------------------- what the governor asks of CUDA */

/* The limiter's own calls must not disturb a capture that any thread has begun: relaxed for their duration. */
static CUstreamCaptureMode relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    typeof(&cuThreadExchangeStreamCaptureMode) exchange = REAL(cuThreadExchangeStreamCaptureMode);
    if (exchange != NULL)
        exchange(&mode);
    return mode;
}

static void restore(CUstreamCaptureMode mode)
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
    relax();
}

static void *stream_context(void *stream)
{
    CUcontext context = NULL;
    CUstreamCaptureMode mode = relax();
    if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        context = context_current();
    restore(mode);
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
    *mode = relax();
    return true;
}

static void leave(CUstreamCaptureMode mode)
{
    CUcontext context;
    restore(mode);
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

static bool set_fence(void *fence_, void *stream)
{
    CUstreamCaptureMode mode;
    struct fence *fence = fence_;
    if (!enter(fence->context, &mode))
        return false;
    bool set = !stream_capturing(stream) && REAL(cuEventRecord)(fence->event, stream) == CUDA_SUCCESS;
    leave(mode);
    return set;
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

static const struct engine engine = {
    .now = now,
    .pause = pause_ns,
    .begin = begin,
    .stream_context = stream_context,
    .make = make_fence,
    .drop = drop_fence,
    .set = set_fence,
    .passed = fence_passed,
    .power = nvml_power,
};

/* --------------------------------------------------------------------------------------------------- governors */

struct governor *governor_known(int device)
{
    return device < 0 ? NULL : atomic_load_explicit(&governors[device], memory_order_acquire);
}

/* Registered after the driver's own exit functions, so it runs before them: the driver is still whole. */
static void retire_all(void)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (governor_known(device) != NULL)
            governor_retire(governor_known(device));
}

static struct governor *governor_of(int device)
{
    struct governor *governor = governor_known(device);
    if (governor != NULL)
        return governor;
    struct region *region = tenant_region();
    if (region == NULL)
        return NULL;
    static bool registered; /* under `making` */
    pthread_mutex_lock(&making);
    governor = governor_known(device);
    if (governor == NULL) {
        governor = governor_new(&engine, tenant_terms(device), &region->shared->devices[device], tenant_directory(),
                                (unsigned)device);
        atomic_store_explicit(&governors[device], governor, memory_order_release);
        if (!registered)
            registered = atexit(retire_all) == 0;
    }
    pthread_mutex_unlock(&making);
    return governor;
}

void launch_after_fork(void)
{
    atomic_store(&launch_devices, 0); /* the child may come to see other devices */
    making = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        if (governor_known(device) != NULL)
            governor_after_fork(governor_known(device));
        atomic_store(&governors[device], NULL);
    }
}

/* ----------------------------------------------------------------------------------------------------- the gate */

struct stream_key stream_key(CUstream stream)
{
    struct stream_key key = {.stream = stream};
    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        key.context = context_current();
    if (stream == CU_STREAM_PER_THREAD)
        key.thread = &thread_identity;
    return key;
}

_Atomic int launch_devices;

bool launch_look(void)
{
    if (tenancy() == TENANCY_FREE)
        atomic_store_explicit(&launch_devices, NO_GRANT, memory_order_release);
    else if (tenancy() == TENANCY_HELD && devices_all_ours())
        atomic_store_explicit(&launch_devices, (int)tenant_grant->device_count, memory_order_release);
    return launch_is_free();
}

CUresult launch_enter(struct launch_ticket *launch_ticket, CUstream stream)
{
    launch_ticket->governor = NULL;
    if (tenancy() == TENANCY_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    int device = device_of_stream(stream);
    if (device < 0)
        return device == DEVICE_FOREIGN ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    if (!terms_limit_core(tenant_terms(device)) || (capturing() && stream_capturing(stream)))
        return CUDA_SUCCESS;
    struct governor *governor = governor_of(device);
    if (governor == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    launch_ticket->stream = stream_key(stream);
    if (governor_enter(governor))
        launch_ticket->governor = governor;
    return CUDA_SUCCESS;
}

void launch_leave(const struct launch_ticket *launch_ticket)
{
    if (launch_ticket->governor != NULL)
        governor_leave(launch_ticket->governor, &launch_ticket->stream);
}
