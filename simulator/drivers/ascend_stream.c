/* Streams, events and notifies. The card serves a process's tasks in the order in which they are sent. Work behind
 * something that has not happened yet is kept on the host, and sent when it has. */
#include "ascend_runtime.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_US 50u /* between two looks at what somebody waits for */

static bool has_worker;         /* under the lock: a thread looks after the streams that have to wait */
static __thread bool is_worker; /* this thread is it */

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

struct stream *stream_new(struct context *context)
{
    struct stream *stream = object_new(OBJECT_STREAM);
    stream->context = context;
    return stream;
}

void works_free(struct work *first)
{
    for (struct work *next; first; first = next) {
        next = first->next;
        free(first);
    }
}

/* What the stream had not begun is dropped. */
void stream_free(struct stream *stream)
{
    while (stream->is_calling && !is_worker) {
        pthread_mutex_unlock(&runtime.lock);
        usleep(POLL_US);
        pthread_mutex_lock(&runtime.lock);
    }
    runtime.blocked_count -= stream->first != NULL;
    works_free(stream->first);
    if (stream->capture)
        capture_leave(stream);
    object_free(stream);
}

void events_leave(const struct device *device)
{
    for (struct event *event = NULL; (event = object_next(event, OBJECT_EVENT));)
        if (event->device == device) {
            event->device = NULL;
            event->recorded_count = event->asked_count;
        }
}

void streams_forget(void)
{
    has_worker = false;
}

rtError_t stream_find(const void *handle, struct stream **stream)
{
    struct context *context = context_current();
    if (!context)
        return ACL_ERROR_RT_CONTEXT_NULL;
    *stream = handle ? object_find(handle, OBJECT_STREAM) : context->default_stream;
    if (!*stream)
        return ACL_ERROR_RT_INVALID_HANDLE;
    return (*stream)->context == context ? ACL_SUCCESS : ACL_ERROR_RT_STREAM_CONTEXT;
}

/* Work. */

static void send_task(struct stream *stream, uint64_t length_ns)
{
    struct fake_task entry = {.length_ns = length_ns};
    unsigned device = stream->context->device->logical_id;
    struct fake_task_send send = {
        .queue = (uint32_t)stream->object.number, .timeout_ms = FOREVER, .entries = &entry, .entry_count = 1};
    halSqTaskSend(device, &send);
    stream->fence = fake_hal_fence(device);
}

static bool event_reached(const struct event *event)
{
    return event->recorded_count == event->asked_count &&
           (!event->device || fake_hal_done(event->device->logical_id, event->fence));
}

static bool word_fits(const struct work *work)
{
    enum { GREATER_OR_EQUAL, EQUAL, AND, NOR };
    uint64_t value = __atomic_load_n(work->word.address, __ATOMIC_ACQUIRE);
    switch (work->word.flag) {
    case GREATER_OR_EQUAL: return (int64_t)(value - work->word.value) >= 0;
    case EQUAL: return value == work->word.value;
    case AND: return value & work->word.value;
    default: return ~(value | work->word.value);
    }
}

static bool is_ready(const struct stream *stream, const struct work *work)
{
    unsigned device = stream->context->device->logical_id;
    switch (work->kind) {
    case WORK_WAIT_EVENT: {
        const struct event *event = object_find(work->record.event, OBJECT_EVENT);
        if (!event || event->object.number != work->record.event_number)
            return true;
        return event->recorded_count >= work->record.record_number &&
               (event->device == stream->context->device || event_reached(event));
    }
    case WORK_NOTIFY_WAIT: return !object_find(work->notify, OBJECT_NOTIFY) || work->notify->count;
    case WORK_VALUE_WAIT: return word_fits(work);
    case WORK_CALL: return is_worker && fake_hal_done(device, stream->fence);
    default: return true;
    }
}

static void record(struct stream *stream, const struct work *work)
{
    struct event *event = object_find(work->record.event, OBJECT_EVENT);
    if (!event || event->object.number != work->record.event_number)
        return;
    event->device = stream->context->device;
    event->fence = stream->fence;
    event->record_ns = now_ns();
    event->recorded_count = work->record.record_number;
}

static void call(struct stream *stream, const struct work *work)
{
    stream->is_calling = true;
    pthread_mutex_unlock(&runtime.lock);
    work->call.function(work->call.argument);
    pthread_mutex_lock(&runtime.lock);
    stream->is_calling = false;
}

/* Data is moved when the work is begun, while the card is at it. No program can tell this from a later copy. */
static void perform(struct stream *stream, const struct work *work)
{
    switch (work->kind) {
    case WORK_TASK: send_task(stream, work->task_ns); break;
    case WORK_COPY:
        send_task(stream, work->task_ns);
        memmove(work->copy.to, work->copy.from, work->copy.bytes);
        break;
    case WORK_FILL:
        send_task(stream, work->task_ns);
        memset(work->copy.to, work->copy.value, work->copy.bytes);
        break;
    case WORK_RECORD: record(stream, work); break;
    case WORK_NOTIFY_RECORD:
        if (object_find(work->notify, OBJECT_NOTIFY))
            work->notify->count++;
        break;
    case WORK_NOTIFY_WAIT:
        if (object_find(work->notify, OBJECT_NOTIFY))
            work->notify->count--;
        break;
    case WORK_VALUE_WRITE: __atomic_store_n(work->word.address, work->word.value, __ATOMIC_RELEASE); break;
    case WORK_CALL: call(stream, work); break;
    default: break;
    }
}

/* Begins what can be begun of the streams that have to wait. */
static void pump(void)
{
    for (bool is_any = runtime.blocked_count; is_any;) {
        is_any = false;
        for (struct stream *stream = NULL; (stream = object_next(stream, OBJECT_STREAM));)
            while (stream->first && !stream->is_calling && is_ready(stream, stream->first)) {
                struct work *work = stream->first;
                perform(stream, work);
                stream->first = work->next;
                runtime.blocked_count -= !stream->first;
                free(work);
                is_any = runtime.blocked_count;
            }
    }
}

static void *work_on(void *unused UNUSED)
{
    is_worker = true;
    pthread_mutex_lock(&runtime.lock);
    while (runtime.blocked_count) {
        pump();
        pthread_mutex_unlock(&runtime.lock);
        usleep(POLL_US);
        pthread_mutex_lock(&runtime.lock);
    }
    has_worker = false;
    pthread_mutex_unlock(&runtime.lock);
    return NULL;
}

static void block(struct stream *stream, struct work work)
{
    struct work *kept = malloc(sizeof *kept);
    pthread_t worker;
    *kept = work;
    kept->next = NULL;
    runtime.blocked_count += !stream->first;
    *(stream->first ? &stream->last->next : &stream->first) = kept;
    stream->last = kept;
    if (!has_worker && pthread_create(&worker, NULL, work_on, NULL) == 0) {
        pthread_detach(worker);
        has_worker = true;
    }
}

rtError_t stream_push(struct stream *stream, struct work work)
{
    if (stream->is_updating)
        return update_task(stream, &work);
    if (stream->capture)
        return capture_add(stream, work);
    if (stream->first || !is_ready(stream, &work))
        block(stream, work);
    else
        perform(stream, &work);
    pump();
    return ACL_SUCCESS;
}

/* Waiting. Each releases the lock meanwhile; the stream may be gone then. */

static bool is_late(uint64_t start_ns, int32_t timeout_ms)
{
    return timeout_ms >= 0 && now_ns() - start_ns >= (uint64_t)timeout_ms * 1000000u;
}

static void let_others(void)
{
    pthread_mutex_unlock(&runtime.lock);
    usleep(POLL_US);
    pthread_mutex_lock(&runtime.lock);
}

static rtError_t fence_wait(unsigned device, uint64_t fence, uint64_t start_ns, int32_t timeout_ms, rtError_t late)
{
    while (timeout_ms >= 0 && !fake_hal_done(device, fence)) {
        if (is_late(start_ns, timeout_ms))
            return late;
        let_others();
    }
    if (timeout_ms < 0) {
        pthread_mutex_unlock(&runtime.lock);
        fake_hal_wait(device, fence);
        pthread_mutex_lock(&runtime.lock);
    }
    return ACL_SUCCESS;
}

rtError_t stream_wait(struct stream *stream, int32_t timeout_ms)
{
    uint64_t start_ns = now_ns(), number = stream->object.number;
    struct device *device = stream->context->device;
    pump();
    while (stream->object.kind == OBJECT_STREAM && stream->object.number == number && stream->first) {
        if (is_late(start_ns, timeout_ms))
            return ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
        let_others();
        pump();
    }
    CHECK(fence_wait(device->logical_id, stream->fence, start_ns, timeout_ms, ACL_ERROR_RT_STREAM_SYNC_TIMEOUT));
    pools_settle(device);
    return ACL_SUCCESS;
}

static rtError_t stream_guard(const struct stream *stream)
{
    if (!stream->capture)
        return capture_guard();
    capture_spoil(stream->capture);
    return ACL_ERROR_RT_STREAM_CAPTURED;
}

rtError_t fake_rt_stream_wait(void *handle, int32_t timeout_ms)
{
    WITH_STREAM(stream, handle);
    NEEDS(timeout_ms >= FOREVER);
    CHECK(stream_guard(stream));
    return stream_wait(stream, timeout_ms);
}

EXPORT rtError_t rtStreamSynchronize(rtStream_t handle)
{
    return fake_rt_stream_wait(handle, FOREVER);
}

rtError_t fake_rt_device_wait(int32_t timeout_ms)
{
    WITH_CONTEXT(context);
    NEEDS(timeout_ms >= FOREVER);
    CHECK(capture_guard());
    const struct device *device = context->device;
    for (struct stream *stream = NULL; (stream = object_next(stream, OBJECT_STREAM));)
        if (stream->context->device == device)
            CHECK(stream_wait(stream, timeout_ms));
    return ACL_SUCCESS;
}

rtError_t fake_rt_stream_query(void *handle, bool *is_done)
{
    WITH_STREAM(stream, handle);
    NEEDS(is_done);
    CHECK(stream_guard(stream));
    pump();
    *is_done = !stream->first && fake_hal_done(stream->context->device->logical_id, stream->fence);
    return ACL_SUCCESS;
}

/* Streams. */

EXPORT rtError_t rtStreamCreate(rtStream_t *handle, int32_t priority)
{
    WITH_CONTEXT(context);
    NEEDS(handle && priority >= 0 && priority <= 7);
    if (context->device->stream_count == STREAMS_MOST)
        return ACL_ERROR_RT_NO_STREAM_RESOURCE;
    context->device->stream_count++;
    *handle = stream_new(context);
    return ACL_SUCCESS;
}

/* The work that the stream has begun is done all the same. */
EXPORT rtError_t rtDestroyStreamForce(rtStream_t handle)
{
    LOCKED;
    WITH_OBJECT(stream, handle, OBJECT_STREAM);
    NEEDS(stream != stream->context->default_stream);
    stream->context->device->stream_count--;
    stream_free(stream);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtStreamDestroy(rtStream_t handle)
{
    return rtDestroyStreamForce(handle);
}

rtError_t fake_rt_default_stream(void **stream)
{
    WITH_CONTEXT(context);
    NEEDS(stream);
    *stream = context->default_stream;
    return ACL_SUCCESS;
}

rtError_t fake_rt_stream_id(void *handle, int32_t *id)
{
    WITH_STREAM(stream, handle);
    NEEDS(id);
    *id = (int32_t)stream->object.number;
    return ACL_SUCCESS;
}

/* Events. */

rtError_t fake_rt_event_create(void **handle, uint32_t flags)
{
    WITH_CONTEXT(context);
    NEEDS(handle);
    struct event *event = object_new(OBJECT_EVENT);
    event->flags = flags;
    *handle = event;
    return ACL_SUCCESS;
}

rtError_t fake_rt_event_destroy(void *handle)
{
    LOCKED;
    WITH_OBJECT(event, handle, OBJECT_EVENT);
    object_free(event);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtEventRecord(rtEvent_t event_handle, rtStream_t handle)
{
    WITH_STREAM(stream, handle);
    WITH_OBJECT(event, event_handle, OBJECT_EVENT);
    event->capture = stream->capture;
    if (stream->capture && !(event->flags & ACL_EVENT_EXTERNAL)) /* a fence between tasks, and none of the model's */
        return ACL_SUCCESS;
    struct work work = {.kind = WORK_RECORD};
    work.record.event = event;
    work.record.event_number = event->object.number;
    work.record.record_number = stream->capture ? event->asked_count : ++event->asked_count;
    return stream_push(stream, work);
}

EXPORT rtError_t rtEventReset(rtEvent_t event_handle, rtStream_t handle)
{
    WITH_STREAM(stream, handle);
    WITH_OBJECT(event, event_handle, OBJECT_EVENT);
    event->asked_count = event->recorded_count = 0;
    event->device = NULL;
    return ACL_SUCCESS;
}

/* A stream that waits for an event of a captured one is captured from then on. */
EXPORT rtError_t rtStreamWaitEvent(rtStream_t handle, rtEvent_t event_handle)
{
    WITH_STREAM(stream, handle);
    WITH_OBJECT(event, event_handle, OBJECT_EVENT);
    if (event->capture && event->capture->origin && !stream->capture && stream != stream->context->default_stream) {
        stream->capture = event->capture;
        return ACL_SUCCESS;
    }
    if (stream->capture && stream->capture != event->capture)
        return capture_spoil(stream->capture);
    struct work work = {.kind = WORK_WAIT_EVENT};
    work.record.event = event;
    work.record.event_number = event->object.number;
    work.record.record_number = event->asked_count;
    return stream->capture ? ACL_SUCCESS : stream_push(stream, work);
}

EXPORT rtError_t rtStreamWaitEventWithTimeout(rtStream_t stream, rtEvent_t event, uint32_t timeout UNUSED)
{
    return rtStreamWaitEvent(stream, event);
}

static rtError_t event_guard(const struct event *event)
{
    if (!event->capture || !event->capture->origin)
        return capture_guard();
    capture_spoil(event->capture);
    return ACL_ERROR_RT_EVENT_CAPTURED;
}

rtError_t fake_rt_event_query(void *handle, bool *is_done)
{
    LOCKED;
    WITH_OBJECT(event, handle, OBJECT_EVENT);
    NEEDS(is_done);
    CHECK(event_guard(event));
    pump();
    *is_done = event_reached(event);
    return ACL_SUCCESS;
}

rtError_t fake_rt_event_wait(void *handle, int32_t timeout_ms)
{
    LOCKED;
    uint64_t start_ns = now_ns();
    WITH_OBJECT(event, handle, OBJECT_EVENT);
    CHECK(event_guard(event));
    for (pump(); event->object.kind == OBJECT_EVENT && event->recorded_count < event->asked_count; pump()) {
        if (is_late(start_ns, timeout_ms))
            return ACL_ERROR_RT_EVENT_SYNC_TIMEOUT;
        let_others();
    }
    struct device *device = event->device;
    if (!device)
        return ACL_SUCCESS;
    CHECK(fence_wait(device->logical_id, event->fence, start_ns, timeout_ms, ACL_ERROR_RT_EVENT_SYNC_TIMEOUT));
    pools_settle(device);
    return ACL_SUCCESS;
}

/* An idle card stamps an event at once. */
static uint64_t time_of(const struct event *event)
{
    uint64_t time_ns = fake_hal_when(event->device->logical_id, event->fence);
    return time_ns > event->record_ns ? time_ns : event->record_ns;
}

static bool has_time(const struct event *event)
{
    return event->device && event->flags & ACL_EVENT_TIME_LINE && event_reached(event);
}

rtError_t fake_rt_event_elapsed(float *ms, void *start_handle, void *end_handle)
{
    LOCKED;
    struct event *start = object_find(start_handle, OBJECT_EVENT), *end = object_find(end_handle, OBJECT_EVENT);
    NEEDS(ms && start && end);
    pump();
    if (!has_time(start) || !has_time(end))
        return ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID;
    uint64_t start_ns = time_of(start), end_ns = time_of(end);
    if (end_ns < start_ns)
        return ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL;
    *ms = (float)((double)(end_ns - start_ns) / 1e6);
    return ACL_SUCCESS;
}

rtError_t fake_rt_event_time(void *handle, uint64_t *us)
{
    LOCKED;
    WITH_OBJECT(event, handle, OBJECT_EVENT);
    NEEDS(us);
    pump();
    if (!has_time(event))
        return ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID;
    *us = time_of(event) / 1000;
    return ACL_SUCCESS;
}

/* Notifies: a wait takes one record. */

EXPORT rtError_t rtNotifyCreate(int32_t device UNUSED, rtNotify_t *handle)
{
    WITH_CONTEXT(context);
    NEEDS(handle);
    *handle = object_new(OBJECT_NOTIFY);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtNotifyDestroy(rtNotify_t handle)
{
    LOCKED;
    WITH_OBJECT(notify, handle, OBJECT_NOTIFY);
    object_free(notify);
    return ACL_SUCCESS;
}

static rtError_t notify_push(rtNotify_t handle, rtStream_t stream_handle, bool is_wait)
{
    WITH_STREAM(stream, stream_handle);
    WITH_OBJECT(notify, handle, OBJECT_NOTIFY);
    return stream_push(stream,
                       (struct work){.kind = is_wait ? WORK_NOTIFY_WAIT : WORK_NOTIFY_RECORD, .notify = notify});
}

EXPORT rtError_t rtNotifyRecord(rtNotify_t notify, rtStream_t stream)
{
    return notify_push(notify, stream, false);
}

EXPORT rtError_t rtNotifyWait(rtNotify_t notify, rtStream_t stream)
{
    return notify_push(notify, stream, true);
}

EXPORT rtError_t rtNotifyWaitWithTimeOut(rtNotify_t notify, rtStream_t stream, uint32_t timeout UNUSED)
{
    return notify_push(notify, stream, true);
}

EXPORT rtError_t rtsNotifyWaitAndReset(rtNotify_t notify, rtStream_t stream, uint32_t timeout UNUSED)
{
    return notify_push(notify, stream, true);
}

/* What is counted and how is in structures without a source: one record is one count here. */
EXPORT rtError_t rtCntNotifyRecord(rtCntNotify_t notify, rtStream_t stream, const void *record UNUSED)
{
    return notify_push(notify, stream, false);
}

EXPORT rtError_t rtCntNotifyWaitWithTimeout(rtCntNotify_t notify, rtStream_t stream, const void *wait UNUSED)
{
    return notify_push(notify, stream, true);
}

EXPORT rtError_t rtsCntNotifyRecord(rtCntNotify_t notify, rtStream_t stream, void *record UNUSED)
{
    return notify_push(notify, stream, false);
}

EXPORT rtError_t rtsCntNotifyWaitWithTimeout(rtCntNotify_t notify, rtStream_t stream, void *wait UNUSED)
{
    return notify_push(notify, stream, true);
}

/* Words and calls. */

rtError_t fake_rt_word(void *address, uint64_t value, uint32_t flag, void *handle, bool is_wait)
{
    WITH_STREAM(stream, handle);
    NEEDS(address && (uintptr_t)address % sizeof value == 0 && flag <= 3);
    struct work work = {.kind = is_wait ? WORK_VALUE_WAIT : WORK_VALUE_WRITE};
    work.word.address = address;
    work.word.value = value;
    work.word.flag = flag;
    return stream_push(stream, work);
}

/* A host function occupies its stream until it returns. */
rtError_t fake_rt_call(void *handle, void (*function)(void *), void *argument)
{
    WITH_STREAM(stream, handle);
    NEEDS(function);
    struct work work = {.kind = WORK_CALL};
    work.call.function = function;
    work.call.argument = argument;
    return stream_push(stream, work);
}
