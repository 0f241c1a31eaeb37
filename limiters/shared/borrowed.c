/* Memory of other processes and other APIs: charged where it was made, while that has it. When its maker lets go of it,
 * the driver counts it for who has it open (measured on an NVIDIA H100, driver 580.159.04).
 */
#include "borrowed.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "uncounted.h"

#include "../core/fault.h"
#include "../core/ledger.h"
#include "../core/log.h"
#include "management.h"

#include <stdatomic.h>

/* The process's figure lies between the card's two, so that of what its other threads take and free meanwhile, none is
 * taken for what the card gets back: before, the card's use is the less of them, and afterwards the more. */
static struct card_use look(int device, bool after)
{
    const char *uuid = tenant_terms(device)->uuid;
    struct card_use use = {0};
    uint64_t figure, again = 0;
    use.known = management_card_memory(uuid, &use.card);
    use.listed = management_process_memory(uuid, &figure);
    use.process = (use.listed ? (int64_t)figure : 0) + unseen_bytes(device);
    use.known = use.known && management_card_memory(uuid, &again);
    use.card = after == (use.card > again) ? use.card : again;
    return use;
}

static bool look_at_grant(int device, struct card_use *use)
{
    struct region *region = tenant_region();
    return region != NULL && ledger_returned(region, (unsigned)device, &use->own, &use->others);
}

struct card_use card_use(int device)
{
    struct card_use grant = {0};
    bool known = look_at_grant(device, &grant);
    struct card_use use = look(device, false);
    use.known = use.known && known;
    use.own = grant.own;
    use.others = grant.others;
    return use;
}

/* What others gave back went before they said so, and is looked at last. */
bool card_got_back(int device, struct card_use before, uint64_t bytes)
{
    if (!before.known)
        return false;
    struct card_use after = look(device, true); /* with no context it is in no list */
    if (!after.known || !look_at_grant(device, &after) || after.card > before.card)
        return false;
    uint64_t lost = before.listed && after.process < before.process ? (uint64_t)(before.process - after.process) : 0;
    uint64_t others = after.others - before.others + (before.listed ? 0 : after.own - before.own);
    return others < UINT64_MAX / 2 &&
           before.card - after.card >= (lost > bytes ? lost : bytes) + FAULT_VALUE(others_frees_believed, others, 0);
}

void stays_charged(int device, uint64_t bytes)
{
    unseen_add(device, (int64_t)bytes);
    log_line(LOG_INFO, "device %d: %llu bytes that others have, too, are not back: they stay charged", device,
             (unsigned long long)bytes);
}

void say_shared(int device, int64_t bytes)
{
    if (bytes != 0 && counted(device) && tenant_region() != NULL)
        ledger_report(tenant_region(), HETERO_REPORT_SHARED, (unsigned)device, bytes);
}

void say_opened(int change)
{
    for (uint32_t device = 0; tenant_region() != NULL && device < tenant_grant->device_count; device++)
        if (counted((int)device))
            ledger_report(tenant_region(), HETERO_REPORT_OPENED, device, change);
}

static atomic_bool any_shared; /* set with the first, never cleared */

result_t pointer_shared(const struct entry *held)
{
    struct entry previous, part = shared_part(held);
    result_t refused = charge_shared(held);
    if (refused != RESULT_OK)
        return refused;
    atomic_store(&any_shared, true);
    if (table_put(&part, &previous) && previous.kind == 0)
        say_shared(part.device, (int64_t)part.bytes);
    return RESULT_OK;
}

bool is_shared(const struct entry *held)
{
    struct entry part;
    return atomic_load_explicit(&any_shared, memory_order_relaxed) &&
           table_get(HELD_SHARED, shared_part(held).key, &part);
}

static void settle_shared(int device, uint64_t bytes, struct card_use before)
{
    if (card_got_back(device, before, bytes)) {
        refund(device, bytes);
        say_shared(device, -(int64_t)bytes);
    } else {
        stays_charged(device, bytes);
    }
}

void shared_over(const struct entry *held, struct card_use before)
{
    struct entry part;
    uint64_t bytes = shared_gone(held);
    if (bytes == 0)
        return;
    table_take(HELD_SHARED, shared_part(held).key, &part);
    settle_shared(held->device, bytes, before);
}

static bool shared_of(const struct entry *entry, const void *context)
{
    return entry->kind == HELD_SHARED && entry->owner == context;
}

struct card_use before_context(context_t context)
{
    struct entry part;
    bool any = atomic_load_explicit(&any_shared, memory_order_relaxed) && context != NULL;
    return any && table_find(shared_of, context, &part) ? card_use(part.device) : (struct card_use){0};
}

struct entry shared_in(context_t context)
{
    struct entry part, all = {.device = DEVICE_NONE, .owner = context};
    bool any = atomic_load_explicit(&any_shared, memory_order_relaxed) && context != NULL;
    for (; any && table_take_match(shared_of, context, &part); all.bytes += part.bytes)
        all.device = part.device;
    if (all.bytes > 0)
        charge_held(all.device, all.bytes);
    return all;
}

void shared_context_over(const struct entry *all, struct card_use before)
{
    if (all->bytes > 0)
        settle_shared(all->device, all->bytes, before.listed ? before : (struct card_use){0});
}

result_t settle_share(result_t answer, const struct entry *held, bool news)
{
    struct entry part;
    if (answer == RESULT_OK)
        pointer_shared(held);
    else if (news && table_take(HELD_SHARED, shared_part(held).key, &part))
        say_shared(part.device, -(int64_t)part.bytes);
    return answer;
}

static bool holds_address(const struct entry *entry, const void *address)
{
    if (entry->kind != HELD_POINTER)
        return false;
    struct entry part = shared_part(entry);
    return (uint64_t)(uintptr_t)address - part.key < part.bytes;
}

bool held_at(pointer_t address, struct entry *held)
{
    return table_get(HELD_POINTER, (uintptr_t)address, held) ||
           table_find(holds_address, (const void *)(uintptr_t)address, held);
}

/* The driver makes a handle of any address in an allocation. */
result_t share_pointer(result_t (*real)(TYPE(ipcMemHandle) *, pointer_t), TYPE(ipcMemHandle) *handle, pointer_t pointer)
{
    struct entry held;
    if (!held_at(pointer, &held))
        return real(handle, pointer);
    bool news = !is_shared(&held);
    result_t refused = pointer_shared(&held);
    return refused == RESULT_OK ? settle_share(real(handle, pointer), &held, news) : refused;
}

#define LOOK_AFTER(call)                                                                                               \
    do {                                                                                                               \
        result_t answered = call;                                                                                      \
        if (answered == RESULT_OK)                                                                                     \
            uncounted_look(device_current());                                                                          \
        return answered;                                                                                               \
    } while (0)

result_t open_shared(result_t (*real)(pointer_t *, TYPE(ipcMemHandle), unsigned), pointer_t *pointer,
                     TYPE(ipcMemHandle) handle, unsigned flags)
{
    struct entry previous, entry = {.kind = HELD_OPENED, .bytes = 1};
    result_t answer = real(pointer, handle, flags);
    if (answer == RESULT_OK) {
        entry.key = (uintptr_t)*pointer;
        entry.owner = context_of_memory();
        if (table_take(HELD_OPENED, entry.key, &previous))
            entry.bytes += previous.bytes;
        table_put(&entry, &previous);
        say_opened(1);
    }
    LOOK_AFTER(answer);
}

result_t close_shared(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct entry previous, entry = {0};
    result_t answer = real(pointer);
    if (answer == RESULT_OK && table_take(HELD_OPENED, (uintptr_t)pointer, &entry)) {
        if (--entry.bytes > 0)
            table_put(&entry, &previous);
        say_opened(-1);
    }
    LOOK_AFTER(answer);
}

static bool opened_in(const struct entry *entry, const void *context)
{
    return entry->kind == HELD_OPENED && entry->owner == context;
}

int take_opened(context_t context)
{
    struct entry entry;
    int count = 0;
    while (context != NULL && table_take_match(opened_in, context, &entry))
        count += (int)entry.bytes;
    return count;
}

void imported_over(const struct entry *entry)
{
    say_opened(-(int)entry->bytes);
}

static atomic_bool any_imported; /* set with the first, never cleared */

static void imported(uint64_t key)
{
    struct entry previous, entry = {.kind = HELD_IMPORTED, .key = key, .device = DEVICE_NONE, .bytes = 1};
    atomic_store(&any_imported, true);
    if (table_put(&entry, &previous) && previous.kind == 0)
        say_opened(1);
}

bool take_imported(uint64_t key, struct entry *entry)
{
    return atomic_load_explicit(&any_imported, memory_order_relaxed) && table_take(HELD_IMPORTED, key, entry);
}

result_t import_pool(result_t (*real)(TYPE(memoryPool) *, void *, TYPE(memAllocationHandleType), unsigned long long),
                     TYPE(memoryPool) *pool, void *shared, TYPE(memAllocationHandleType) type, unsigned long long flags)
{
    result_t answer = real(pool, shared, type, flags);
    if (answer == RESULT_OK)
        imported((uintptr_t)*pool);
    LOOK_AFTER(answer);
}

result_t import_pointer(result_t (*real)(pointer_t *, TYPE(memoryPool), TYPE(memPoolPtrExportData) *),
                        pointer_t *pointer, TYPE(memoryPool) pool, TYPE(memPoolPtrExportData) *shared)
{
    result_t answer = real(pointer, pool, shared);
    if (answer == RESULT_OK)
        imported((uintptr_t)*pointer);
    LOOK_AFTER(answer);
}

result_t import_memory(result_t (*real)(TYPE(externalMemory) *, const NAMED(EXTERNAL_MEMORY_HANDLE_DESC) *),
                       TYPE(externalMemory) *memory, const NAMED(EXTERNAL_MEMORY_HANDLE_DESC) *shared)
{
    LOOK_AFTER(real(memory, shared));
}

result_t let_go_memory(result_t (*real)(TYPE(externalMemory)), TYPE(externalMemory) memory)
{
    LOOK_AFTER(real(memory));
}
