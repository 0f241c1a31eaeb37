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

#include "../core/fault.h"
#include "../core/log.h"

#include <pthread.h>
#include <string.h>

#define ORDINALS 64

/* Each ordinal's primary context, as the driver last returned it. */
static _Atomic(context_t) primary_contexts[ORDINALS];

/* Guards the entries of attachments. */
static pthread_mutex_t context_mutex = PTHREAD_MUTEX_INITIALIZER;

/* By device: what is charged for this process's contexts; under `charges_mutex`. The charge of the last context that
 * ended stays for the next one, because the driver keeps part of its memory until the process ends. */
static struct {
    unsigned live_count;
    uint64_t idle_bytes;
} context_charges[HETERO_MAX_DEVICES];
static pthread_mutex_t charges_mutex = PTHREAD_MUTEX_INITIALIZER;

/* By ordinal: held while the primary context is retained, or released and its state read. */
static pthread_mutex_t primary_mutexes[ORDINALS] = {[0 ... ORDINALS - 1] = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t *primary_mutex_of(device_t ordinal)
{
    return &primary_mutexes[(unsigned)ordinal % ORDINALS];
}

void context_after_fork(void)
{
    context_mutex = charges_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(context_charges, 0, sizeof context_charges);
    for (unsigned ordinal = 0; ordinal < ORDINALS; ordinal++)
        primary_mutexes[ordinal] = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* A primary context that stands is charged already, so its retention needs no room. */
static bool primary_stands(device_t ordinal)
{
    unsigned flags;
    int is_active = 0;
    pthread_mutex_lock(primary_mutex_of(ordinal));
    bool stands = DRIVER(DevicePrimaryCtxGetState)(ordinal, &flags, &is_active) == RESULT_OK && is_active;
    pthread_mutex_unlock(primary_mutex_of(ordinal));
    return stands;
}

/* One context, from before the driver makes it until after that. */
struct making {
    int device;
    bool is_counted;        /* then `charges_mutex` is held */
    uint64_t charged_bytes; /* for the context, if it is a new one */
    uint64_t idle_bytes;    /* of these, what was charged for the last one that ended */
    struct driver_baseline baseline;
};

/* Whether a context on a device that is not of the grant is refused, as all memory of it is: where contexts count. The
 * user is told once, since what fails later says nothing of the cause. */
static bool is_refused_context(device_t ordinal)
{
    static atomic_bool is_told;
    bool is_counted = false;
    for (unsigned device = 0; device < tenant_grant->device_count; device++)
        is_counted |= contexts_counted((int)device);
    if (!atomic_exchange(&is_told, true))
        log_line(LOG_NOTICE, "the driver's device %d is not of the grant: nothing of it is given (" VISIBLE_DEVICES ")",
                 (int)ordinal);
    return is_counted && !FAULT(contexts_uncharged);
}

/* Charge a new context. What the last one that ended left charged is a part of it. */
static result_t charge_new(struct making *making)
{
    uint64_t idle_bytes = context_charges[making->device].idle_bytes;
    uint64_t context_bytes = terms_context(tenant_terms(making->device));
    uint64_t missing_bytes = context_bytes > idle_bytes ? context_bytes - idle_bytes : 0;
    result_t answer = charge(making->device, missing_bytes);
    if (answer != RESULT_OK)
        return answer;
    context_charges[making->device].idle_bytes = 0;
    making->idle_bytes = idle_bytes;
    making->charged_bytes = idle_bytes + missing_bytes;
    return RESULT_OK;
}

/* With HETERO_FLAG_CONTEXT, charge what a context takes before it is made. `charges_mutex` is held over the driver's
 * call: only the driver's answer says whether a context is new, and of two threads that retain one primary context each
 * would reserve room for it, so that one was refused in a grant with room for one. A program makes few contexts, and
 * context_begins() has them made one by one in any case, to tell what each takes. No allocation takes this mutex. */
static result_t making_begins(struct making *making, device_t ordinal, bool is_primary)
{
    int device = device_of(ordinal);
    if (device == DEVICE_FOREIGN && tenancy() == TENANCY_HELD && is_refused_context(ordinal))
        return ERROR(OUT_OF_MEMORY);
    *making = (struct making){.device = device, .is_counted = contexts_counted(device) && !FAULT(contexts_uncharged)};
    if (making->is_counted)
        pthread_mutex_lock(&charges_mutex);
    result_t answer = making->is_counted && !(is_primary && primary_stands(ordinal)) ? charge_new(making) : RESULT_OK;
    if (answer != RESULT_OK) {
        pthread_mutex_unlock(&charges_mutex);
        return answer;
    }
    making->baseline = context_begins(device);
    return RESULT_OK;
}

/* A context ended: give its charge back, or keep it for the next one if no other is left. */
static void context_ended(context_t context, struct card_use use_before)
{
    struct entry entry;
    if (table_take(CONTEXT_CHARGE, (uintptr_t)context, &entry)) {
        pthread_mutex_lock(&charges_mutex);
        if (--context_charges[entry.device].live_count > 0)
            refund(entry.device, entry.bytes);
        else
            context_charges[entry.device].idle_bytes = entry.bytes;
        pthread_mutex_unlock(&charges_mutex);
    }
    after_context_ended(context, use_before);
}

/* Whether a new context was made. `context` is NULL if the driver made none. It may also be one that stood already. */
static bool keep_context_charge(const struct making *making, context_t context)
{
    struct entry previous, entry = {.kind = CONTEXT_CHARGE,
                                    .key = (uintptr_t)context,
                                    .device = making->device,
                                    .bytes = making->charged_bytes};
    bool is_new = context != NULL && !table_get(CONTEXT_CHARGE, entry.key, &previous) && table_put(&entry, &previous);
    if (is_new) {
        context_charges[making->device].live_count++;
    } else {
        context_charges[making->device].idle_bytes += making->idle_bytes;
        refund(making->device, making->charged_bytes - making->idle_bytes);
    }
    pthread_mutex_unlock(&charges_mutex);
    return is_new;
}

/* After the driver's answer. Out of memory: the context took more than fits, and is to be ended. */
static result_t making_ends(const struct making *making, result_t answer, context_t context)
{
    int device = making->device;
    context_made(&making->baseline, answer == RESULT_OK ? context : NULL);
    bool is_charged = making->is_counted && keep_context_charge(making, answer == RESULT_OK ? context : NULL);
    if (answer != RESULT_OK)
        return answer;
    bool fits = (!is_charged || uncounted_settle(device)) && libraries_enter(context, device) &&
                local_enter(context, device) && tables_enter(device);
    return fits ? RESULT_OK : ERROR(OUT_OF_MEMORY);
}

result_t retain_primary(result_t (*real)(context_t *, device_t), context_t *context, device_t ordinal)
{
    struct making making;
    result_t answer = making_begins(&making, ordinal, true);
    if (answer != RESULT_OK)
        return answer;
    pthread_mutex_lock(primary_mutex_of(ordinal));
    answer = real(context, ordinal);
    pthread_mutex_unlock(primary_mutex_of(ordinal));
    bool is_made = answer == RESULT_OK;
    answer = making_ends(&making, answer, is_made ? *context : NULL);
    if (is_made && ordinal >= 0 && ordinal < ORDINALS)
        atomic_store(&primary_contexts[ordinal], *context);
    if (is_made && answer != RESULT_OK)
        release_primary(DRIVER(DevicePrimaryCtxRelease_v2), ordinal);
    return answer;
}

#define CREATE(call)                                                                                                   \
    do {                                                                                                               \
        struct making making;                                                                                          \
        result_t answer = making_begins(&making, ordinal, false);                                                      \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = call;                                                                                                 \
        bool is_made = answer == RESULT_OK;                                                                            \
        answer = making_ends(&making, answer, is_made ? *context : NULL);                                              \
        if (is_made && answer != RESULT_OK)                                                                            \
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
        context_ended(context, use_before);
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
        context_ended(context, use_before);
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
