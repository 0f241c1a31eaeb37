/* Captures and models: what a stream was given while it was captured is begun when the model is executed. */
#include "ascend_runtime.h"

#include <stdlib.h>
#include <string.h>

/* What this thread may do while somebody captures; as CUDA's modes. */
static __thread aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

static bool is_forbidden(const struct model *model)
{
    if (!model->origin || model->mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED ||
        thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
        return false;
    return pthread_equal(model->thread, pthread_self()) ||
           (model->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
}

rtError_t capture_guard(void)
{
    for (struct model *model = NULL; (model = object_next(model, OBJECT_MODEL));)
        if (is_forbidden(model)) {
            capture_spoil(model);
            return ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
        }
    return ACL_SUCCESS;
}

rtError_t capture_spoil(struct model *model)
{
    model->status = ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED;
    return ACL_ERROR_RT_STREAM_CAPTURED;
}

static rtError_t append(struct model *model, struct work work)
{
    struct work *kept = malloc(sizeof *kept);
    if (!kept)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    *kept = work;
    kept->next = NULL;
    *(model->first ? &model->last->next : &model->first) = kept;
    model->last = kept;
    return ACL_SUCCESS;
}

rtError_t capture_add(struct stream *stream, struct work work)
{
    if (stream->capture->status != ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE)
        return ACL_ERROR_RT_STREAM_CAPTURED;
    work.group = stream->open_group;
    return append(stream->capture, work);
}

EXPORT rtError_t rtStreamBeginCapture(rtStream_t handle, aclmdlRICaptureMode mode)
{
    WITH_STREAM(stream, handle);
    NEEDS(mode <= ACL_MODEL_RI_CAPTURE_MODE_RELAXED);
    if (stream->capture)
        return ACL_ERROR_RT_STREAM_CAPTURED;
    if (stream == stream->context->default_stream)
        return ACL_ERROR_RT_PARAM_INVALID;
    struct model *model = object_new(OBJECT_MODEL);
    model->origin = stream;
    model->mode = mode;
    model->status = ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
    model->thread = pthread_self();
    stream->capture = model;
    return ACL_SUCCESS;
}

static void destroy(struct model *model)
{
    for (struct group *group = NULL; (group = object_next(group, OBJECT_GROUP));)
        if (group->model == model)
            object_free(group);
    for (struct event *event = NULL; (event = object_next(event, OBJECT_EVENT));)
        if (event->capture == model)
            event->capture = NULL;
    works_free(model->first);
    object_free(model);
}

static void end_capture(struct model *model)
{
    for (struct stream *joined = NULL; (joined = object_next(joined, OBJECT_STREAM));)
        if (joined->capture == model) {
            joined->capture = NULL;
            joined->open_group = NULL;
        }
    model->origin = NULL;
}

void capture_leave(const struct stream *stream)
{
    struct model *model = stream->capture;
    capture_spoil(model);
    if (model->origin != stream)
        return;
    end_capture(model);
    destroy(model);
}

EXPORT rtError_t rtStreamEndCapture(rtStream_t handle, rtModel_t *model_handle)
{
    WITH_STREAM(stream, handle);
    NEEDS(model_handle);
    struct model *model = stream->capture;
    *model_handle = NULL;
    if (!model)
        return ACL_ERROR_RT_STREAM_NOT_CAPTURED;
    if (model->origin != stream)
        return ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED;
    end_capture(model);
    if (model->status != ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE) {
        destroy(model);
        return ACL_ERROR_RT_STREAM_UNJOINED;
    }
    model->status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    *model_handle = model;
    return ACL_SUCCESS;
}

rtError_t fake_rt_capture_info(void *handle, aclmdlRICaptureStatus *status, void **model)
{
    WITH_STREAM(stream, handle);
    NEEDS(status && model);
    *status = stream->capture ? stream->capture->status : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    *model = stream->capture;
    return ACL_SUCCESS;
}

rtError_t fake_rt_capture_mode(aclmdlRICaptureMode *mode)
{
    LOCKED;
    NEEDS(mode && *mode <= ACL_MODEL_RI_CAPTURE_MODE_RELAXED);
    aclmdlRICaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return ACL_SUCCESS;
}

rtError_t fake_rt_model_destroy(void *handle)
{
    LOCKED;
    WITH_OBJECT(model, handle, OBJECT_MODEL);
    NEEDS(!model->origin);
    destroy(model);
    return ACL_SUCCESS;
}

/* Groups of tasks, whose arguments may be changed between executes of the same model. */

static struct work *next_of(struct work *work, const struct group *group)
{
    while (work && work->group != group)
        work = work->next;
    return work;
}

static rtError_t open_group(struct stream *stream, struct group *group)
{
    if (stream->open_group)
        return ACL_ERROR_STREAM_TASK_GROUP_STATUS;
    stream->open_group = group;
    return ACL_SUCCESS;
}

static rtError_t capture_group(struct stream *stream, void **handle, bool is_end)
{
    if (!stream->capture)
        return ACL_ERROR_RT_STREAM_NOT_CAPTURED;
    if (!is_end) {
        struct group *group = object_new(OBJECT_GROUP);
        group->model = stream->capture;
        return open_group(stream, group);
    }
    if (!stream->open_group)
        return ACL_ERROR_STREAM_TASK_GROUP_STATUS;
    NEEDS(handle);
    *handle = stream->open_group;
    stream->open_group = NULL;
    return ACL_SUCCESS;
}

rtError_t fake_rt_group(void *stream_handle, void **handle, bool is_update, bool is_end)
{
    WITH_STREAM(stream, stream_handle);
    if (!is_update)
        return capture_group(stream, handle, is_end);
    if (!is_end) {
        WITH_OBJECT(group, *handle, OBJECT_GROUP);
        CHECK(open_group(stream, group));
        stream->is_updating = true;
        stream->updated = next_of(group->model->first, group);
        return ACL_SUCCESS;
    }
    bool is_whole = stream->is_updating && !stream->updated;
    stream->open_group = NULL;
    stream->is_updating = false;
    stream->updated = NULL;
    return is_whole ? ACL_SUCCESS : ACL_ERROR_STREAM_TASK_GROUP_STATUS;
}

rtError_t update_task(struct stream *stream, const struct work *work)
{
    struct work *updated = stream->updated;
    if (!updated || updated->kind != work->kind)
        return ACL_ERROR_STREAM_TASK_GROUP_STATUS;
    struct work *next = updated->next;
    struct group *group = updated->group;
    *updated = *work;
    updated->group = group;
    updated->next = next;
    stream->updated = next_of(next, group);
    return ACL_SUCCESS;
}

/* Executes. Tasks in a row are one task of the card: the host launches nothing between them. */

static rtError_t execute(struct stream *stream, const struct model *model)
{
    struct work tasks = {.kind = WORK_TASK};
    for (const struct work *work = model->first; work; work = work->next) {
        if (work->kind == WORK_TASK) {
            tasks.task_ns += work->task_ns;
            continue;
        }
        if (tasks.task_ns)
            CHECK(stream_push(stream, tasks));
        tasks.task_ns = 0;
        CHECK(stream_push(stream, *work));
    }
    return tasks.task_ns ? stream_push(stream, tasks) : ACL_SUCCESS;
}

static rtError_t execute_on(void *model_handle, void *handle, bool is_waited, int32_t timeout_ms)
{
    WITH_STREAM(stream, handle);
    WITH_OBJECT(model, model_handle, OBJECT_MODEL);
    NEEDS(!model->origin);
    CHECK(execute(stream, model));
    return is_waited ? stream_wait(stream, timeout_ms) : ACL_SUCCESS;
}

EXPORT rtError_t rtModelExecute(rtModel_t model, rtStream_t stream, uint32_t flag UNUSED)
{
    return execute_on(model, stream, false, 0);
}

EXPORT rtError_t rtModelExecuteAsync(rtModel_t model, rtStream_t stream, uint32_t flag UNUSED)
{
    return execute_on(model, stream, false, 0);
}

EXPORT rtError_t rtModelExecuteSync(rtModel_t model, rtStream_t stream, uint32_t flag UNUSED, int32_t timeout_ms)
{
    return execute_on(model, stream, true, timeout_ms);
}

EXPORT rtError_t rtsModelExecute(rtModel_t model, int32_t timeout_ms)
{
    return execute_on(model, NULL, true, timeout_ms);
}

EXPORT rtError_t rtsModelExecuteAsync(rtModel_t model, rtStream_t stream)
{
    return execute_on(model, stream, false, 0);
}
