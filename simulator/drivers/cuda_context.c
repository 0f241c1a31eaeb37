/* Contexts: what makes a process show on a card, and what its threads work in. */
#include "driver.h"

#include <stdlib.h>

#define STACK 32u
#define QUEUE 1024u /* launches in flight before the launcher waits, about the real driver's depth */

static __thread void *context_stack[STACK]; /* this thread's contexts, green or not, the current one last */
static __thread unsigned stack_depth;

static struct context *context_of(void *handle)
{
    struct context *context = object_find(handle, OBJECT_CONTEXT);
    return context || !object_find(handle, OBJECT_GREEN) ? context : ((struct green *)handle)->primary;
}

struct context *current_context(void)
{
    return stack_depth ? context_of(context_stack[stack_depth - 1]) : NULL;
}

CUresult device_join(struct device *device)
{
    if (!device->account) {
        device->account = engine_join(driver.rack->engine, device->card_index);
        if (!device->account)
            return CUDA_ERROR_OUT_OF_MEMORY;
        device->launch_fences = calloc(QUEUE, sizeof *device->launch_fences);
        device->default_pool = device->current_pool = pool_new(device, 0);
        device->graph_pool = pool_new(device, UINT64_MAX);
    }
    device->context_count++;
    return CUDA_SUCCESS;
}

void device_leave(struct device *device)
{
    if (--device->context_count)
        return;
    settle(NULL);
    for (struct pool *pool = NULL; (pool = object_next(pool, OBJECT_POOL));)
        if (pool->device == device)
            pool_free(pool);
    device->default_pool = device->current_pool = device->graph_pool = NULL;
    free(device->launch_fences);
    tables_leave(device);
    device->launch_count = 0;
    engine_leave(device->account);
    device->account = NULL;
}

void submit(struct stream *stream, uint64_t work_ns)
{
    stream->submitted_ns += work_ns;
    struct device *device = stream->context->device;
    uint64_t *oldest_fence = &device->launch_fences[device->launch_count++ % QUEUE];
    if (!engine_done(device->account, *oldest_fence))
        wait_for(device, (struct position){.fence = *oldest_fence});
    stream->last_position.fence = *oldest_fence = engine_submit(device->account, work_ns);
    legacy_follows(stream);
}

void legacy_follows(struct stream *stream)
{
    struct position *legacy_position = &stream->context->legacy->last_position;
    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return;
    legacy_position->fence = stream->last_position.fence;
    legacy_position->condition_number = condition_both(legacy_position->condition_number,
                                                       stream->last_position.condition_number);
}

static CUresult context_new(struct device *device, unsigned flags, unsigned api_version, struct context **context)
{
    CHECK(device_join(device));
    if (!engine_charge(device->account, device->slot->context_bytes)) {
        device_leave(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct context *new_context = object_new(OBJECT_CONTEXT);
    new_context->device = device;
    new_context->flags = flags;
    new_context->api_version = api_version;
    limits_start(new_context);
    new_context->legacy = stream_new(new_context, 0, 0);
    new_context->per_thread = stream_new(new_context, 0, 0);
    *context = new_context;
    return CUDA_SUCCESS;
}

static void context_free(struct context *context)
{
    wait_for(context->device, (struct position){.fence = context->legacy->last_position.fence});
    settle(context);
    modules_leave(context);
    memory_free_of(context);
    arrays_free_of(context);
    blocks_free(context);
    greens_leave(context);
    execs_leave(context);
    engine_release(context->device->account,
                   context->device->slot->context_bytes + context->stream_bytes + context->view_bytes);
    limits_end(context);
    streams_leave(context);
    device_leave(context->device);
    object_free(context);
}

static CUresult push(void *context)
{
    if (stack_depth == STACK)
        return CUDA_ERROR_INVALID_VALUE;
    context_stack[stack_depth++] = context;
    return CUDA_SUCCESS;
}

CUresult primary_retain(struct device *device)
{
    if (!device->primary)
        CHECK(context_new(device, device->primary_flags, 13000, &device->primary));
    device->primary_retained++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(handle);
    CHECK(primary_retain(device));
    *handle = (CUcontext)device->primary;
    return CUDA_SUCCESS;
}

CUresult primary_release(struct device *device)
{
    if (!device->primary_retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_retained)
        return CUDA_SUCCESS;
    struct context *primary = device->primary;
    device->primary = NULL;
    context_free(primary);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    return primary_release(device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return cuDevicePrimaryCtxRelease_v2(ordinal);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    WITH_DEVICE(device, ordinal);
    struct context *primary = device->primary;
    device->primary = NULL;
    device->primary_retained = 0;
    device->primary_flags = 0;
    if (primary)
        context_free(primary);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return cuDevicePrimaryCtxReset_v2(ordinal);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
    WITH_DEVICE(device, ordinal);
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    WITH_DEVICE(device, ordinal);
    if (flags)
        *flags = device->primary_flags;
    if (active)
        *active = device->primary != NULL;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal, unsigned api)
{
    WITH_DEVICE(device, ordinal);
    NEEDS(handle);
    struct context *context;
    CHECK(context_new(device, flags, api, &context));
    CHECK(push(context));
    *handle = (CUcontext)context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate(CUcontext *handle, unsigned flags, CUdevice ordinal)
{
    return create(handle, flags, ordinal, 3010);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *handle, unsigned flags, CUdevice ordinal)
{
    return create(handle, flags, ordinal, 3020);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int affinity_count, unsigned flags,
                               CUdevice ordinal)
{
    (void)affinity;
    return affinity_count ? CUDA_ERROR_NOT_SUPPORTED : create(handle, flags, ordinal, 3030);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *params, unsigned flags, CUdevice ordinal)
{
    return params ? CUDA_ERROR_NOT_SUPPORTED : create(handle, flags, ordinal, 3040);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle)
{
    LOCKED;
    struct context *context = object_find(handle, OBJECT_CONTEXT);
    if (!context || context == context->device->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current_context() == context)
        stack_depth--;
    context_free(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext handle)
{
    return cuCtxDestroy_v2(handle);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
    LOCKED;
    return context_of(handle) ? push(handle) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext handle)
{
    return cuCtxPushCurrent_v2(handle);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *handle)
{
    LOCKED;
    WITH_CONTEXT(context);
    (void)context;
    stack_depth--;
    if (handle)
        *handle = context_stack[stack_depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *handle)
{
    return cuCtxPopCurrent_v2(handle);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle)
{
    LOCKED;
    if (handle && !context_of(handle))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack_depth)
        stack_depth--;
    return handle ? push(handle) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *handle)
{
    LOCKED;
    NEEDS(handle);
    *handle = stack_depth ? context_stack[stack_depth - 1] : NULL; /* looked up once: launches count by it */
    *handle = context_of(*handle) ? *handle : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *ordinal)
{
    LOCKED;
    WITH_CONTEXT(context);
    NEEDS(ordinal);
    *ordinal = (CUdevice)(context->device - driver.devices);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext handle)
{
    if (!handle)
        return cuCtxGetDevice(ordinal);
    LOCKED;
    struct context *context = object_find(handle, OBJECT_CONTEXT);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    NEEDS(ordinal);
    *ordinal = (CUdevice)(context->device - driver.devices);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    NEEDS(flags);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetFlags(unsigned flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

static struct context *context_or_current(CUcontext handle)
{
    return handle ? object_find(handle, OBJECT_CONTEXT) : current_context();
}

EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long *number)
{
    LOCKED;
    struct context *context = context_or_current(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    NEEDS(number);
    *number = context->object.number;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version)
{
    LOCKED;
    struct context *context = context_or_current(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    NEEDS(version);
    *version = context->api_version;
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext handle)
{
    LOCKED;
    struct context *context = context_or_current(handle);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    CHECK(capture_guard());
    struct position last_position = context->legacy->last_position;
    for (struct stream *stream = NULL; (stream = object_next(stream, OBJECT_STREAM));) {
        if (stream->context != context)
            continue;
        last_position.fence = stream->last_position.fence > last_position.fence ? stream->last_position.fence
                                                                                : last_position.fence;
        last_position.condition_number = condition_both(last_position.condition_number,
                                                        stream->last_position.condition_number);
    }
    wait_for(context->device, last_position);
    pools_settle(context->device, FOR_A_CONTEXT);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    return synchronize(NULL);
}
EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle)
{
    return synchronize(handle);
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    LOCKED;
    WITH_CONTEXT(context);
    (void)context;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}
