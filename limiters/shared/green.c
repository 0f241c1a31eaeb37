/* Green contexts: part of a device's processors, with the memory of the device's primary context. Each takes memory by
 * itself, which ends with it.
 */
#include "bodies.h"
#include "charge.h"
#include "context.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"

/* What one takes, where the driver does not say: measured on an NVIDIA H100, driver 580.159.04, 2026-11-23. */
#define GREEN_BYTES (UINT64_C(16) << 20)

/* The driver answered. One that was made took `bytes`, of which GREEN_BYTES are charged. */
static result_t settle_green(result_t answer, const TYPE(greenCtx) *green, int device, uint64_t bytes,
                             context_t primary)
{
    uint64_t more = bytes > GREEN_BYTES ? bytes - GREEN_BYTES : 0;
    if (answer == RESULT_OK && more > 0 && (answer = charge(device, more)) != RESULT_OK)
        DRIVER(GreenCtxDestroy)(*green);
    if (answer != RESULT_OK) {
        refund(device, GREEN_BYTES);
        return answer;
    }
    refund(device, GREEN_BYTES + more - bytes);
    keep(&(struct entry){
        .key = (uintptr_t)*green, .kind = HELD_GREEN, .device = device, .bytes = bytes, .owner = primary});
    return RESULT_OK;
}

result_t create_green(result_t (*real)(TYPE(greenCtx) *, TYPE(devResourceDesc), device_t, unsigned),
                      TYPE(greenCtx) *green, TYPE(devResourceDesc) parts, device_t ordinal, unsigned flags)
{
    context_t primary;
    int device = device_of(ordinal);
    result_t answer = charge(device, GREEN_BYTES);
    if (answer != RESULT_OK || !counted(device))
        return answer != RESULT_OK ? answer : real(green, parts, ordinal, flags);
    /* It has the primary context made, which is not part of what it takes. */
    answer = retain_primary(DRIVER(DevicePrimaryCtxRetain), &primary, ordinal);
    if (answer == RESULT_OK) {
        uint64_t bytes = GREEN_BYTES;
        struct measured measured = context_begins(device);
        answer = real(green, parts, ordinal, flags);
        context_grew(&measured, &bytes);
        answer = settle_green(answer, green, device, bytes, primary);
        release_primary(DRIVER(DevicePrimaryCtxRelease_v2), ordinal);
    } else {
        refund(device, GREEN_BYTES);
    }
    return answer;
}

static bool is_of_green(const struct entry *entry, const void *green)
{
    return entry->kind == GREEN_CONTEXT && entry->link == green;
}

static result_t destroy(result_t (*real)(TYPE(greenCtx)), TYPE(greenCtx) green)
{
    struct entry context;
    result_t answer = real(green);
    while (answer == RESULT_OK && table_take_match(is_of_green, green, &context))
        ;
    return answer;
}

/* What the driver keeps of it nevertheless is seen in the process's figure. It may be the last to keep the primary
 * context: so that is kept until then. */
result_t destroy_green(result_t (*real)(TYPE(greenCtx)), TYPE(greenCtx) green)
{
    struct entry held, previous;
    context_t primary;
    if (!table_take(HELD_GREEN, (uintptr_t)green, &held) ||
        DRIVER(DevicePrimaryCtxRetain)(&primary, ordinal_of(held.device)) != RESULT_OK)
        return destroy(real, green);
    result_t answer = destroy(real, green);
    if (answer == RESULT_OK)
        give_back(&held);
    else
        table_put(&held, &previous);
    uncounted_settle(held.device);
    release_primary(DRIVER(DevicePrimaryCtxRelease_v2), ordinal_of(held.device));
    return answer;
}

/* What is allocated in it is the primary context's. */
result_t context_of_green(result_t (*real)(context_t *, TYPE(greenCtx)), context_t *context, TYPE(greenCtx) green)
{
    struct entry held;
    result_t answer = real(context, green);
    if (answer == RESULT_OK && table_get(HELD_GREEN, (uintptr_t)green, &held))
        context_is_green(*context, green, held.owner);
    return answer;
}

result_t create_green_stream(result_t (*real)(stream_t *, TYPE(greenCtx), unsigned, int), stream_t *stream,
                             TYPE(greenCtx) green, unsigned flags, int priority)
{
    struct entry held;
    result_t answer = real(stream, green, flags, priority);
    bool ours = table_get(HELD_GREEN, (uintptr_t)green, &held);
    return answer == RESULT_OK && ours ? settle_stream(*stream, held.device) : answer;
}
