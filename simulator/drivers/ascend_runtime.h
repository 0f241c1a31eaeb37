/* Inside the fake libruntime: its objects, and the functions that its files share. Memory and time are the driver's
 * (ascend_hal.h), which is called through symbols.
 *
 * One lock guards all of this process's state. LOCKED holds it until the function returns. No thread waits for the card
 * while it holds the lock. What the driver is asked while it is held may ask the runtime again. Handles are cells of
 * one arena, so that a stale handle is recognised.
 *
 * The rt* functions whose arguments have a source are exported under their names (acl/abi.h). What the acl layer needs
 * besides is exported as fake_rt_*, at the end of this file.
 */
#ifndef HETERO_FAKE_ASCEND_RUNTIME_H
#define HETERO_FAKE_ASCEND_RUNTIME_H

#include "acl/abi.h"
#include "ascend_hal.h"
#include "object.h"

#include <pthread.h>

enum { /* besides abi.h's: P */
       ACL_ERROR_RT_INVALID_DEVICEID = 107001,
       ACL_ERROR_RT_STREAM_CONTEXT = 107003,
       ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID = 107006,
       ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL = 107007,
       ACL_ERROR_RT_STREAM_UNJOINED = 107025,
       ACL_ERROR_RT_EVENT_CAPTURED = 107028,
       ACL_ERROR_RT_STREAM_NOT_CAPTURED = 107029,
       ACL_ERROR_STREAM_TASK_GROUP_STATUS = 107033,
       ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED = 107036,
       ACL_ERROR_RT_NO_DEVICE = 207004,
       ACL_ERROR_RT_NO_PERMISSION = 207006,
       ACL_ERROR_RT_NO_STREAM_RESOURCE = 207008,
       ACL_ERROR_RT_KERNEL_LOOKUP = 507027,
       ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
       ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047,
       ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899,
};

#define ACL_EVENT_EXTERNAL 0x20u /* P */

#define DEVICES         64u
#define STREAMS_MOST    1984u /* of a device */
#define NAME_BYTES_MOST 128u
#define FOREVER         -1

/* Of rtMalloc's type, aclrtMemMallocPolicy: the simulator's own bits, as no source tells. */
#define FAKE_POLICY_SHIFT 24

enum object_kind {
    OBJECT_FREE,
    OBJECT_CONTEXT,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_NOTIFY,
    OBJECT_MODEL,
    OBJECT_GROUP,
    OBJECT_BINARY,
    OBJECT_FUNCTION,
    OBJECT_ARGUMENTS,
    OBJECT_POOL,
};

struct device { /* by the user's id */
    unsigned logical_id, set_count, context_count, stream_count;
    struct context *primary; /* NULL: nobody set the device */
};

struct context {
    struct object object;
    struct device *device;
    struct stream *default_stream;
};

struct work { /* of a stream, in order */
    enum {
        WORK_TASK,
        WORK_COPY,
        WORK_FILL,
        WORK_RECORD,
        WORK_WAIT_EVENT,
        WORK_NOTIFY_RECORD,
        WORK_NOTIFY_WAIT,
        WORK_VALUE_WRITE,
        WORK_VALUE_WAIT,
        WORK_CALL,
    } kind;
    uint64_t task_ns;
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
            int value; /* of a fill */
        } copy;
        struct {
            struct event *event;
            uint64_t event_number, record_number;
        } record;
        struct notify *notify;
        struct {
            uint64_t *address, value;
            uint32_t flag;
        } word;
        struct {
            void (*function)(void *);
            void *argument;
        } call;
    };
    struct group *group; /* of a captured task */
    struct work *next;
};

struct stream {
    struct object object;
    struct context *context;
    struct work *first, *last; /* what it has not begun, because its first has to wait */
    bool is_calling;           /* a host function, with the lock released */
    uint64_t fence;            /* of its last task that was sent */
    struct model *capture;     /* NULL: not captured */
    struct group *open_group;  /* whose tasks are being captured or updated */
    struct work *updated;      /* the next one to update */
    bool is_updating;
};

struct event {
    struct object object;
    struct device *device; /* that it was last recorded on */
    uint32_t flags;
    uint64_t asked_count, recorded_count; /* records asked for, and those that the stream has reached */
    uint64_t fence, record_ns;
    struct model *capture; /* of its last record */
};

struct notify {
    struct object object;
    uint64_t count; /* of records that nobody waited for */
};

struct model {
    struct object object;
    struct work *first, *last;
    struct stream *origin; /* NULL: the capture has ended */
    aclmdlRICaptureMode mode;
    aclmdlRICaptureStatus status;
    pthread_t thread;
};

struct group { /* tasks of a model that are updated together */
    struct object object;
    struct model *model;
};

struct runtime {
    pthread_mutex_t lock;
    bool is_open;
    unsigned device_count, blocked_count; /* blocked_count: streams that have to wait */
    struct device devices[DEVICES];
};
extern struct runtime runtime __attribute__((visibility("hidden")));

static inline void unlock_runtime(char *guard UNUSED)
{
    pthread_mutex_unlock(&runtime.lock);
}

#define LOCKED                                                                                                         \
    pthread_mutex_lock(&runtime.lock);                                                                                 \
    char guard UNUSED __attribute__((cleanup(unlock_runtime))) = 0;                                                    \
    runtime_open()
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        rtError_t checked = (call);                                                                                    \
        if (checked)                                                                                                   \
            return checked;                                                                                            \
    } while (0)
#define NEEDS(condition)                                                                                               \
    if (!(condition))                                                                                                  \
    return ACL_ERROR_RT_PARAM_INVALID
#define WITH_CONTEXT(name)                                                                                             \
    LOCKED;                                                                                                            \
    struct context *name = context_current();                                                                          \
    if (!name)                                                                                                         \
    return ACL_ERROR_RT_CONTEXT_NULL
#define WITH_STREAM(name, handle)                                                                                      \
    struct stream *name = NULL;                                                                                        \
    LOCKED;                                                                                                            \
    CHECK(stream_find((handle), &(name)))
#define WITH_OBJECT(name, handle, kind)                                                                                \
    struct name *name = object_find((handle), (kind));                                                                 \
    if (!name)                                                                                                         \
    return ACL_ERROR_RT_INVALID_HANDLE

void runtime_open(void);
rtError_t code_of(drvError_t error);

struct context *context_current(void);
struct device *device_at(int32_t user_id); /* NULL: no such device */
rtError_t device_reset(int32_t user_id, bool is_forced);

struct stream *stream_new(struct context *context);
void stream_free(struct stream *stream);
/* NULL is the default stream of the thread's context. A stream of another context is refused. */
rtError_t stream_find(const void *handle, struct stream **stream);
rtError_t stream_push(struct stream *stream, struct work work); /* begins it, or keeps or captures it */
void events_leave(const struct device *device);                 /* their times were the device's */
void streams_forget(void);                                      /* in a forked child */
/* Releases the lock while it waits. -1: forever. */
rtError_t stream_wait(struct stream *stream, int32_t timeout_ms);

rtError_t capture_guard(void); /* that the thread may wait or query now; a capture that forbids it is spoilt */
rtError_t capture_spoil(struct model *model);
void capture_leave(const struct stream *stream); /* a captured stream ends; its own capture with it */
rtError_t capture_add(struct stream *stream, struct work work);
rtError_t update_task(struct stream *stream, const struct work *work);
void works_free(struct work *first);

void pools_settle(const struct device *device); /* what they keep above their threshold goes back */
void pools_leave(const struct device *device);

/* For the acl layer. */
EXPORT rtError_t fake_rt_reset(int32_t device, bool is_forced);
EXPORT rtError_t fake_rt_device_count(uint32_t *count);
EXPORT rtError_t fake_rt_device(int32_t device, struct fake_npu *npu);
EXPORT rtError_t fake_rt_primary(int32_t device, int32_t *is_active);
EXPORT rtError_t fake_rt_logical_id(int32_t device, int32_t *logical_id);
EXPORT rtError_t fake_rt_context_destroy(void *context);
EXPORT rtError_t fake_rt_context_set(void *context);
EXPORT rtError_t fake_rt_context_get(void **context);
EXPORT rtError_t fake_rt_host_malloc(void **pointer, uint64_t bytes);
EXPORT rtError_t fake_rt_host_free(void *pointer);
EXPORT rtError_t fake_rt_set(void *address, size_t most, int value, size_t bytes, bool is_ordered, void *stream);
EXPORT rtError_t fake_rt_physical_free(void *handle);
EXPORT rtError_t fake_rt_reserve(void **address, size_t bytes, size_t alignment, void *expected, uint64_t flags);
EXPORT rtError_t fake_rt_release(void *address);
EXPORT rtError_t fake_rt_map(void *address, size_t bytes, size_t offset, void *handle, uint64_t flags);
EXPORT rtError_t fake_rt_unmap(void *address);
EXPORT rtError_t fake_rt_retain(const void *address, void **handle);
EXPORT rtError_t fake_rt_granularity(const aclrtPhysicalMemProp *property, uint32_t option, size_t *bytes);
EXPORT rtError_t fake_rt_export(void *handle, uint32_t type, uint64_t flags, uint64_t *shared);
EXPORT rtError_t fake_rt_import(uint64_t shared, int32_t device, void **handle);
EXPORT rtError_t fake_rt_share_with(const char *name, const int32_t *pids, size_t count);
EXPORT rtError_t fake_rt_pool_create(void **pool);
EXPORT rtError_t fake_rt_pool_destroy(void *pool);
EXPORT rtError_t fake_rt_pool_threshold(void *pool, uint64_t bytes);
EXPORT rtError_t fake_rt_pool_trim(void *pool, size_t kept_bytes);
EXPORT rtError_t fake_rt_pool_malloc(void **pointer, size_t bytes, void *pool, void *stream);
EXPORT rtError_t fake_rt_pool_free(void *pointer, void *stream);
EXPORT rtError_t fake_rt_stream_query(void *stream, bool *is_done);
EXPORT rtError_t fake_rt_default_stream(void **stream);
EXPORT rtError_t fake_rt_stream_id(void *stream, int32_t *id);
EXPORT rtError_t fake_rt_stream_wait(void *stream, int32_t timeout_ms);
EXPORT rtError_t fake_rt_device_wait(int32_t timeout_ms);
EXPORT rtError_t fake_rt_event_create(void **event, uint32_t flags);
EXPORT rtError_t fake_rt_event_destroy(void *event);
EXPORT rtError_t fake_rt_event_query(void *event, bool *is_done);
EXPORT rtError_t fake_rt_event_wait(void *event, int32_t timeout_ms);
EXPORT rtError_t fake_rt_event_elapsed(float *ms, void *start, void *end);
EXPORT rtError_t fake_rt_event_time(void *event, uint64_t *us);
EXPORT rtError_t fake_rt_word(void *address, uint64_t value, uint32_t flag, void *stream, bool is_wait);
EXPORT rtError_t fake_rt_call(void *stream, void (*function)(void *), void *argument);
EXPORT rtError_t fake_rt_binary_function(void *binary, const char *name, void **function);
EXPORT rtError_t fake_rt_arguments(void **handle); /* made; their bytes are appended */
EXPORT rtError_t fake_rt_arguments_append(void *handle, const void *bytes, size_t size);
EXPORT rtError_t fake_rt_arguments_free(void *handle);
EXPORT rtError_t fake_rt_capture_info(void *stream, aclmdlRICaptureStatus *status, void **model);
EXPORT rtError_t fake_rt_capture_mode(aclmdlRICaptureMode *mode);
EXPORT rtError_t fake_rt_group(void *stream, void **group, bool is_update, bool is_end);
EXPORT rtError_t fake_rt_model_destroy(void *model);

#endif
