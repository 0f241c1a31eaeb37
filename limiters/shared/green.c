/* Green contexts have part of a device's processors, and use the memory of the device's primary context. Each takes
 * memory of its own until it is destroyed, which is charged here.
 */
#include "bodies.h"
#include "charge.h"
#include "context.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"

/* Bytes of a green context, if the driver has no figure: measured on an NVIDIA H100, driver 580.159.04, 2026-11-23. */
#define GREEN_BYTES (UINT64_C(16) << 20)

/* After the driver's answer: a green context took `bytes`, of which GREEN_BYTES are charged. */
static result_t settle_green(result_t answer, const TYPE(greenCtx) *green_context, int device, uint64_t bytes,
                             context_t primary_context)
{
    uint64_t growth_bytes = bytes > GREEN_BYTES ? bytes - GREEN_BYTES : 0;
    if (answer == RESULT_OK && growth_bytes > 0 && (answer = charge(device, growth_bytes)) != RESULT_OK)
        DRIVER(GreenCtxDestroy)(*green_context);
    if (answer != RESULT_OK) {
        refund(device, GREEN_BYTES);
        return answer;
    }
    refund(device, GREEN_BYTES + growth_bytes - bytes);
    keep_entry(&(struct entry){.key = (uintptr_t)*green_context,
                               .kind = HELD_GREEN,
                               .device = device,
                               .bytes = bytes,
                               .owner = primary_context});
    return RESULT_OK;
}

result_t create_green(result_t (*real)(TYPE(greenCtx) *, TYPE(devResourceDesc), device_t, unsigned),
                      TYPE(greenCtx) *green_context, TYPE(devResourceDesc) resources, device_t ordinal, unsigned flags)
{
    context_t primary_context;
    int device = device_of(ordinal);
    result_t answer = charge(device, GREEN_BYTES);
    if (answer != RESULT_OK || !counted(device))
        return answer != RESULT_OK ? answer : real(green_context, resources, ordinal, flags);
    /* The call also makes the primary context. It is made before, so that it is not measured as the green context's. */
    answer = retain_primary(DRIVER(DevicePrimaryCtxRetain), &primary_context, ordinal);
    if (answer == RESULT_OK) {
        uint64_t bytes = GREEN_BYTES;
        struct driver_baseline baseline = context_begins(device);
        answer = real(green_context, resources, ordinal, flags);
        context_grew(&baseline, &bytes);
        answer = settle_green(answer, green_context, device, bytes, primary_context);
        release_primary(DRIVER(DevicePrimaryCtxRelease_v2), ordinal);
    } else {
        refund(device, GREEN_BYTES);
    }
    return answer;
}

static bool is_of_green(const struct entry *entry, const void *green_context)
{
    return entry->kind == GREEN_CONTEXT && entry->link == green_context;
}

static result_t destroy_and_forget(result_t (*real)(TYPE(greenCtx)), TYPE(greenCtx) green_context)
{
    struct entry context_entry;
    result_t answer = real(green_context);
    while (answer == RESULT_OK && table_take_match(is_of_green, green_context, &context_entry))
        ;
    return answer;
}

/* Memory that the driver keeps after the end is in its figure for the process. The primary context is retained until
 * that is read, as the green context may be the last to hold it. */
result_t destroy_green(result_t (*real)(TYPE(greenCtx)), TYPE(greenCtx) green_context)
{
    struct entry green_entry, previous;
    context_t primary_context;
    if (!table_take(HELD_GREEN, (uintptr_t)green_context, &green_entry) ||
        DRIVER(DevicePrimaryCtxRetain)(&primary_context, ordinal_of(green_entry.device)) != RESULT_OK)
        return destroy_and_forget(real, green_context);
    result_t answer = destroy_and_forget(real, green_context);
    if (answer == RESULT_OK)
        give_back(&green_entry);
    else
        table_put(&green_entry, &previous);
    uncounted_settle(green_entry.device);
    release_primary(DRIVER(DevicePrimaryCtxRelease_v2), ordinal_of(green_entry.device));
    return answer;
}

/* Memory that is allocated in this context belongs to the primary context. */
result_t context_of_green(result_t (*real)(context_t *, TYPE(greenCtx)), context_t *context,
                          TYPE(greenCtx) green_context)
{
    struct entry green_entry;
    result_t answer = real(context, green_context);
    if (answer == RESULT_OK && table_get(HELD_GREEN, (uintptr_t)green_context, &green_entry))
        context_is_green(*context, green_context, green_entry.owner);
    return answer;
}

result_t create_green_stream(result_t (*real)(stream_t *, TYPE(greenCtx), unsigned, int), stream_t *stream,
                             TYPE(greenCtx) green_context, unsigned flags, int priority)
{
    struct entry green_entry;
    result_t answer = real(stream, green_context, flags, priority);
    bool is_known = table_get(HELD_GREEN, (uintptr_t)green_context, &green_entry);
    return answer == RESULT_OK && is_known ? settle_stream(*stream, green_entry.device) : answer;
}
