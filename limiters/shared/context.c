/* Makes and destroys contexts, and charges the memory that one takes by itself. */
#include "context.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "ends.h"
#include "libraries.h"
#include "local.h"
#include "page_tables.h"
#include "uncounted.h"

#include "../core/log.h"
#include "management.h"

#include <pthread.h>

#define ORDINALS 64

/* Each ordinal's primary context, as the driver last returned it. */
static _Atomic(context_t) primary_contexts[ORDINALS];

/* A bit for each device on which this process's context is charged; under `context_mutex`. It stays charged until the
 * process ends, because the driver keeps part of it, and the next context takes the rest again. */
static unsigned charged_device_bits;
static pthread_mutex_t context_mutex = PTHREAD_MUTEX_INITIALIZER;

/* By ordinal: held while the primary context is retained, or released and its state read. */
static pthread_mutex_t primary_mutexes[ORDINALS] = {[0 ... ORDINALS - 1] = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t *primary_mutex_of(device_t ordinal)
{
    return &primary_mutexes[(unsigned)ordinal % ORDINALS];
}

void context_after_fork(void)
{
    context_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned ordinal = 0; ordinal < ORDINALS; ordinal++)
        primary_mutexes[ordinal] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    charged_device_bits = 0;
}

/* With HETERO_FLAG_CONTEXT, charge the memory that the driver counts for this process once it has its first context on
 * a device. */
static result_t charge_context(device_t ordinal)
{
    int device = device_of(ordinal);
    uint64_t bytes;
    result_t answer = RESULT_OK;
    if (device < 0 || terms_policy(tenant_terms(device)) == HETERO_POLICY_OFF ||
        (terms_flags(tenant_terms(device)) & HETERO_FLAG_CONTEXT) == 0)
        return RESULT_OK;
    pthread_mutex_lock(&context_mutex);
    if ((charged_device_bits & 1u << device) == 0) {
        if (management_process_memory(tenant_terms(device)->uuid, &bytes))
            answer = charge(device, bytes);
        else
            log_line(LOG_ERROR, "device %d: the driver does not say what a context takes: not counted", device);
        if (answer == RESULT_OK)
            charged_device_bits |= 1u << device;
    }
    pthread_mutex_unlock(&context_mutex);
    return answer;
}

static result_t settle_context(context_t context, device_t ordinal)
{
    result_t answer = charge_context(ordinal);
    int device = device_of(ordinal);
    if (answer != RESULT_OK ||
        (libraries_enter(context, device) && local_enter(context, device) && tables_enter(device)))
        return answer;
    return ERROR(OUT_OF_MEMORY);
}

result_t retain_primary(result_t (*real)(context_t *, device_t), context_t *context, device_t ordinal)
{
    struct driver_baseline baseline = context_begins(device_of(ordinal));
    pthread_mutex_lock(primary_mutex_of(ordinal));
    result_t answer = real(context, ordinal);
    pthread_mutex_unlock(primary_mutex_of(ordinal));
    context_made(&baseline, answer == RESULT_OK ? *context : NULL);
    if (answer != RESULT_OK)
        return answer;
    answer = settle_context(*context, ordinal);
    if (ordinal >= 0 && ordinal < ORDINALS)
        atomic_store(&primary_contexts[ordinal], *context);
    if (answer != RESULT_OK)
        release_primary(DRIVER(DevicePrimaryCtxRelease_v2), ordinal);
    return answer;
}

#define CREATE(call)                                                                                                   \
    do {                                                                                                               \
        struct driver_baseline baseline = context_begins(device_of(ordinal));                                          \
        result_t answer = call;                                                                                        \
        context_made(&baseline, answer == RESULT_OK ? *context : NULL);                                                \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = settle_context(*context, ordinal);                                                                    \
        if (answer != RESULT_OK)                                                                                       \
            destroy_context(DRIVER(CtxDestroy_v2), *context);                                                          \
        return answer;                                                                                                 \
    } while (0)

result_t create_context(result_t (*real)(context_t *, unsigned, device_t), context_t *context, unsigned flags,
                        device_t ordinal)
{
    CREATE(real(context, flags, ordinal));
}

result_t create_context_affine(result_t (*real)(context_t *, TYPE(execAffinityParam) *, int, unsigned, device_t),
                               context_t *context, TYPE(execAffinityParam) *affinity, int affinity_count,
                               unsigned flags, device_t ordinal)
{
    CREATE(real(context, affinity, affinity_count, flags, ordinal));
}

result_t create_context_with(result_t (*real)(context_t *, TYPE(ctxCreateParams) *, unsigned, device_t),
                             context_t *context, TYPE(ctxCreateParams) *params, unsigned flags, device_t ordinal)
{
    CREATE(real(context, params, flags, ordinal));
}

result_t create_context_vdpau(result_t (*real)(context_t *, unsigned, device_t, uint32_t, void *), context_t *context,
                              unsigned flags, device_t ordinal, uint32_t vdpau_device, void *vdpau_lookup)
{
    CREATE(real(context, flags, ordinal, vdpau_device, vdpau_lookup));
}

/* Whether a call that ends a context failed and did nothing. Any other error may be one of earlier work, and the
 * context ended all the same (cuda.h). Its fences are then not queried any more, and its charges stay. */
static bool call_was_refused(result_t answer)
{
    return answer == ERROR(INVALID_VALUE) || answer == ERROR(INVALID_CONTEXT) || answer == ERROR(NOT_INITIALIZED) ||
           answer == ERROR(DEINITIALIZED) || answer == ERROR(NOT_PERMITTED) ||
           answer == ERROR(STREAM_CAPTURE_UNSUPPORTED);
}

/* The context's state is read under the lock, before another thread can retain the next primary context. */
static result_t end_primary(result_t (*real)(device_t), device_t ordinal, bool is_reset)
{
    context_t context = ordinal >= 0 && ordinal < ORDINALS ? atomic_load(&primary_contexts[ordinal]) : NULL;
    struct card_use use_before = before_context_ends(context);
    unsigned flags;
    int is_active = 1;
    pthread_mutex_lock(primary_mutex_of(ordinal));
    result_t answer = real(ordinal);
    if (!call_was_refused(answer) &&
        (is_reset || DRIVER(DevicePrimaryCtxGetState)(ordinal, &flags, &is_active) != RESULT_OK))
        is_active = !is_reset;
    pthread_mutex_unlock(primary_mutex_of(ordinal));
    context_call_over(context, is_active);
    if (answer == RESULT_OK && !is_active)
        after_context_ended(context, use_before);
    return answer;
}

result_t release_primary(result_t (*real)(device_t), device_t ordinal)
{
    return end_primary(real, ordinal, false);
}

result_t reset_primary(result_t (*real)(device_t), device_t ordinal)
{
    return end_primary(real, ordinal, true);
}

result_t destroy_context(result_t (*real)(context_t), context_t context)
{
    struct card_use use_before = before_context_ends(context);
    result_t answer = real(context);
    context_call_over(context, call_was_refused(answer));
    if (answer == RESULT_OK)
        after_context_ended(context, use_before);
    return answer;
}

/* A detachment undoes one attachment. With none left it destroys the context. */
result_t attach_context(result_t (*real)(context_t *, unsigned), context_t *context, unsigned flags)
{
    result_t answer = real(context, flags);
    struct entry previous, entry = {.kind = CONTEXT_ATTACHED};
    if (answer != RESULT_OK)
        return answer;
    pthread_mutex_lock(&context_mutex);
    if (!table_take(CONTEXT_ATTACHED, (uintptr_t)*context, &entry))
        entry = (struct entry){.kind = CONTEXT_ATTACHED, .key = (uintptr_t)*context, .owner = *context};
    entry.count++;
    table_put(&entry, &previous);
    pthread_mutex_unlock(&context_mutex);
    return answer;
}

result_t detach_context(result_t (*real)(context_t), context_t context)
{
    struct entry previous, entry;
    pthread_mutex_lock(&context_mutex);
    bool was_attached = table_take(CONTEXT_ATTACHED, (uintptr_t)context, &entry);
    if (was_attached && --entry.count > 0)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&context_mutex);
    return was_attached ? real(context) : destroy_context(real, context);
}

result_t settle_stream(stream_t stream, int device)
{
    if (uncounted_settle(device)) {
        if (device >= 0)
            stream_made(device);
        return RESULT_OK;
    }
    DRIVER(StreamDestroy_v2)(stream);
    uncounted_settle(device);
    return ERROR(OUT_OF_MEMORY);
}

/* Whether the memory that a context may take for one more stream fits. The context keeps it when the stream is
 * destroyed, so it is checked before. */
static bool stream_fits(int device)
{
    if (device < 0 || !stream_takes_more(device) || uncounted_fits(device, BLOCK_BYTES))
        return true;
    reclaim(device, BLOCK_BYTES);
    return uncounted_fits(device, BLOCK_BYTES);
}

result_t create_stream(result_t (*real)(stream_t *, unsigned), stream_t *stream, unsigned flags)
{
    if (!stream_fits(device_current()))
        return ERROR(OUT_OF_MEMORY);
    result_t answer = real(stream, flags);
    return answer == RESULT_OK ? settle_stream(*stream, device_current()) : answer;
}

result_t create_stream_priority(result_t (*real)(stream_t *, unsigned, int), stream_t *stream, unsigned flags,
                                int priority)
{
    if (!stream_fits(device_current()))
        return ERROR(OUT_OF_MEMORY);
    result_t answer = real(stream, flags, priority);
    return answer == RESULT_OK ? settle_stream(*stream, device_current()) : answer;
}
