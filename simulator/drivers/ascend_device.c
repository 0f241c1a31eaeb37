/* The simulated libruntime: objects, devices and contexts. */
#include "ascend_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL 256u
_Static_assert(sizeof(struct stream) <= CELL && sizeof(struct model) <= CELL, "a cell holds any object");

struct runtime runtime = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

struct arena objects = {.cell_bytes = CELL, .size_bytes = UINT64_C(1) << 30, .is_queue = true};

static __thread struct { /* of this thread */
    struct context *context;
    uint64_t number; /* of the context: a later one may have its cell */
} current;

rtError_t code_of(drvError_t error)
{
    switch ((int)error) {
    case DRV_ERROR_NONE: return ACL_SUCCESS;
    case DRV_ERROR_INVALID_DEVICE: return ACL_ERROR_RT_INVALID_DEVICEID;
    case DRV_ERROR_INVALID_VALUE: return ACL_ERROR_RT_PARAM_INVALID;
    case DRV_ERROR_OUT_OF_MEMORY: return ACL_ERROR_RT_MEMORY_ALLOCATION;
    case DRV_ERROR_NOT_SUPPORT: return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    default: return error == FAKE_NO_PERMISSION ? ACL_ERROR_RT_NO_PERMISSION : ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    }
}

/* A forked child has no device until it sets one. */
static void in_child(void)
{
    runtime.lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    objects_forget();
    current.context = NULL;
    streams_forget();
    memset(runtime.devices, 0, sizeof runtime.devices);
    runtime.device_count = runtime.blocked_count = 0;
    runtime.is_open = false;
}

static void add_device(unsigned long logical)
{
    if (logical < fake_hal_count() && runtime.device_count < DEVICES)
        runtime.devices[runtime.device_count++].logical_id = (unsigned)logical;
}

/* A user's ids count what ASCEND_RT_VISIBLE_DEVICES lists, up to the first that is none. */
void runtime_open(void)
{
    const char *visible = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (runtime.is_open || !fake_hal_count())
        return;
    if (!objects.start && objects_make())
        pthread_atfork(NULL, NULL, in_child);
    for (unsigned long i = 0; !visible && i < fake_hal_count(); i++)
        add_device(i);
    for (char *end; visible && *visible; visible = *end ? end + 1 : end) {
        unsigned long logical = strtoul(visible, &end, 10);
        if (end == visible || (*end && *end != ',') || logical >= fake_hal_count())
            break;
        add_device(logical);
    }
    runtime.is_open = true;
}

struct device *device_at(int32_t user_id)
{
    return user_id >= 0 && (unsigned)user_id < runtime.device_count ? &runtime.devices[user_id] : NULL;
}

struct context *context_current(void)
{
    struct context *context = object_find(current.context, OBJECT_CONTEXT);
    return context && context->object.number == current.number ? context : NULL;
}

static void set_current(struct context *context)
{
    current.context = context;
    current.number = context ? context->object.number : 0;
}

#define WITH_DEVICE(name, user_id)                                                                                     \
    LOCKED;                                                                                                            \
    struct device *name = device_at(user_id);                                                                          \
    if (!name)                                                                                                         \
    return runtime.device_count ? ACL_ERROR_RT_INVALID_DEVICEID : ACL_ERROR_RT_NO_DEVICE

static rtError_t new_context(struct device *device, struct context **context)
{
    if (!device->context_count && !fake_hal_open(device->logical_id))
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    *context = object_new(OBJECT_CONTEXT);
    (*context)->device = device;
    (*context)->default_stream = stream_new(*context);
    device->context_count++;
    return ACL_SUCCESS;
}

/* With the last context of a device the driver drops all that the process has on it, without a call to free. */
static void drop_context(struct context *context)
{
    struct device *device = context->device;
    for (struct stream *stream = NULL; (stream = object_next(stream, OBJECT_STREAM));)
        if (stream->context == context)
            stream_free(stream);
    object_free(context);
    if (--device->context_count)
        return;
    pools_leave(device);
    events_leave(device);
    fake_hal_close(device->logical_id);
}

/* SetDevice counts: the device's primary context is made by the first, and is every thread's that sets the device. */
EXPORT rtError_t rtSetDevice(int32_t user_id)
{
    WITH_DEVICE(device, user_id);
    if (!device->primary)
        CHECK(new_context(device, &device->primary));
    device->set_count++;
    set_current(device->primary);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtSetDeviceEx(int32_t user_id)
{
    return rtSetDevice(user_id);
}

EXPORT rtError_t rtSetDeviceWithoutTsd(int32_t user_id)
{
    return rtSetDevice(user_id);
}

EXPORT rtError_t rtSetDeviceWithFlags(int32_t user_id, uint64_t flags UNUSED)
{
    return rtSetDevice(user_id);
}

/* ResetDevice counts down. ResetDeviceForce drops everything of the process at once, other contexts too. */
rtError_t fake_rt_reset(int32_t user_id, bool is_forced)
{
    WITH_DEVICE(device, user_id);
    if (!device->set_count)
        return ACL_ERROR_RT_CONTEXT_NULL;
    device->set_count = is_forced ? 0 : device->set_count - 1;
    if (device->set_count)
        return ACL_SUCCESS;
    struct context *primary = device->primary;
    device->primary = NULL;
    drop_context(primary);
    for (struct context *context = NULL; is_forced && (context = object_next(context, OBJECT_CONTEXT));)
        if (context->device == device)
            drop_context(context);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtDeviceReset(int32_t user_id)
{
    return fake_rt_reset(user_id, false);
}

EXPORT rtError_t rtGetDevice(int32_t *user_id)
{
    WITH_CONTEXT(context);
    NEEDS(user_id);
    *user_id = (int32_t)(context->device - runtime.devices);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtGetVisibleDeviceIdByLogicDeviceId(int32_t logical_id, int32_t *user_id)
{
    LOCKED;
    NEEDS(user_id);
    for (unsigned i = 0; i < runtime.device_count; i++)
        if ((int32_t)runtime.devices[i].logical_id == logical_id) {
            *user_id = (int32_t)i;
            return ACL_SUCCESS;
        }
    return ACL_ERROR_RT_INVALID_DEVICEID;
}

rtError_t fake_rt_logical_id(int32_t user_id, int32_t *logical_id)
{
    WITH_DEVICE(device, user_id);
    NEEDS(logical_id);
    *logical_id = (int32_t)device->logical_id;
    return ACL_SUCCESS;
}

rtError_t fake_rt_device_count(uint32_t *count)
{
    LOCKED;
    NEEDS(count);
    *count = runtime.device_count;
    return ACL_SUCCESS;
}

rtError_t fake_rt_device(int32_t user_id, struct fake_npu *npu)
{
    WITH_DEVICE(device, user_id);
    NEEDS(npu);
    return fake_hal_device(device->logical_id, npu) ? ACL_SUCCESS : ACL_ERROR_RT_INVALID_DEVICEID;
}

/* T, O: of the current context's device. */

EXPORT rtError_t rtGetSocVersion(char *version, uint32_t bytes)
{
    struct fake_npu npu;
    WITH_CONTEXT(context);
    NEEDS(version && fake_hal_device(context->device->logical_id, &npu) &&
          snprintf(version, bytes, "Ascend%s", npu.model) < (int)bytes);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtGetAiCoreCount(uint32_t *count)
{
    struct fake_npu npu;
    WITH_CONTEXT(context);
    NEEDS(count && fake_hal_device(context->device->logical_id, &npu));
    *count = npu.core_count;
    return ACL_SUCCESS;
}

/* Where cores wait for each other: an address that kernels are given, and none of the simulator's reads. */
EXPORT rtError_t rtGetC2cCtrlAddr(uint64_t *address, uint32_t *bytes)
{
    static uint64_t word;
    NEEDS(address && bytes);
    *address = (uintptr_t)&word;
    *bytes = sizeof word;
    return ACL_SUCCESS;
}

rtError_t fake_rt_primary(int32_t user_id, int32_t *is_active)
{
    WITH_DEVICE(device, user_id);
    NEEDS(is_active);
    *is_active = device->primary != NULL;
    return ACL_SUCCESS;
}

/* Contexts. */

EXPORT rtError_t rtCtxCreate(void **context, uint32_t flags UNUSED, int32_t user_id)
{
    struct context *made;
    WITH_DEVICE(device, user_id);
    NEEDS(context);
    CHECK(new_context(device, &made));
    set_current(made);
    *context = made;
    return ACL_SUCCESS;
}

rtError_t fake_rt_context_destroy(void *handle)
{
    LOCKED;
    WITH_OBJECT(context, handle, OBJECT_CONTEXT);
    NEEDS(context != context->device->primary);
    drop_context(context);
    return ACL_SUCCESS;
}

rtError_t fake_rt_context_set(void *handle)
{
    LOCKED;
    WITH_OBJECT(context, handle, OBJECT_CONTEXT);
    set_current(context);
    return ACL_SUCCESS;
}

rtError_t fake_rt_context_get(void **handle)
{
    WITH_CONTEXT(context);
    NEEDS(handle);
    *handle = context;
    return ACL_SUCCESS;
}
