/* Memory that several processes or APIs have open. The process that made it is charged while it has it. When it frees
 * it, the driver counts the memory for a process that has it open (measured on an NVIDIA H100, driver 580.159.04).
 */
#include "borrowed.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "uncounted.h"

#include <stdatomic.h>

static atomic_bool has_shared; /* set with the first, never cleared */

result_t note_shared(const struct entry *allocation)
{
    struct entry previous, shared_entry = shared_entry_of(allocation);
    result_t charge_result = charge_shared(allocation);
    if (charge_result != RESULT_OK)
        return charge_result;
    atomic_store(&has_shared, true);
    if (table_put(&shared_entry, &previous) && previous.kind == 0)
        report_shared(shared_entry.device, (int64_t)shared_entry.bytes);
    return RESULT_OK;
}

bool is_shared(const struct entry *allocation)
{
    struct entry shared_entry;
    return atomic_load_explicit(&has_shared, memory_order_relaxed) &&
           table_get(HELD_SHARED, shared_entry_of(allocation).key, &shared_entry);
}

static void settle_shared(int device, uint64_t bytes, struct card_use use_before)
{
    if (card_got_back(device, use_before, bytes)) {
        refund(device, bytes);
        report_shared(device, -(int64_t)bytes);
    } else {
        leave_charged(device, bytes);
    }
}

void shared_freed(const struct entry *allocation, struct card_use use_before)
{
    struct entry shared_entry;
    uint64_t bytes = shared_freed_bytes(allocation);
    if (bytes == 0)
        return;
    table_take(HELD_SHARED, shared_entry_of(allocation).key, &shared_entry);
    settle_shared(allocation->device, bytes, use_before);
}

static bool is_shared_of(const struct entry *entry, const void *context)
{
    return entry->kind == HELD_SHARED && entry->owner == context;
}

struct card_use use_before_context(context_t context)
{
    struct entry shared_entry;
    bool may_have_shared = atomic_load_explicit(&has_shared, memory_order_relaxed) && context != NULL;
    return may_have_shared && table_find(is_shared_of, context, &shared_entry) ? card_use(shared_entry.device)
                                                                               : (struct card_use){0};
}

struct entry charge_shared_again(context_t context)
{
    struct entry shared_entry, total = {.device = DEVICE_NONE, .owner = context};
    bool may_have_shared = atomic_load_explicit(&has_shared, memory_order_relaxed) && context != NULL;
    for (; may_have_shared && table_take_match(is_shared_of, context, &shared_entry); total.bytes += shared_entry.bytes)
        total.device = shared_entry.device;
    if (total.bytes > 0)
        charge_unconditionally(total.device, total.bytes);
    return total;
}

void settle_shared_context(const struct entry *total, struct card_use use_before)
{
    if (total->bytes > 0)
        settle_shared(total->device, total->bytes, use_before.is_process_listed ? use_before : (struct card_use){0});
}

result_t settle_share(result_t answer, const struct entry *allocation, bool is_first_share)
{
    struct entry shared_entry;
    if (answer == RESULT_OK)
        note_shared(allocation);
    else if (is_first_share && table_take(HELD_SHARED, shared_entry_of(allocation).key, &shared_entry))
        report_shared(shared_entry.device, -(int64_t)shared_entry.bytes);
    return answer;
}

static bool contains_address(const struct entry *entry, const void *address)
{
    if (entry->kind != HELD_POINTER)
        return false;
    struct entry shared_entry = shared_entry_of(entry);
    return (uint64_t)(uintptr_t)address - shared_entry.key < shared_entry.bytes;
}

bool allocation_at(pointer_t address, struct entry *allocation)
{
    return table_get(HELD_POINTER, (uintptr_t)address, allocation) ||
           table_find(contains_address, (const void *)(uintptr_t)address, allocation);
}

/* The driver accepts any address in an allocation. */
result_t share_pointer(result_t (*real)(TYPE(ipcMemHandle) *, pointer_t), TYPE(ipcMemHandle) *handle, pointer_t pointer)
{
    struct entry allocation;
    if (!allocation_at(pointer, &allocation))
        return real(handle, pointer);
    bool is_first_share = !is_shared(&allocation);
    result_t charge_result = note_shared(&allocation);
    return charge_result == RESULT_OK ? settle_share(real(handle, pointer), &allocation, is_first_share)
                                      : charge_result;
}

#define CHECK_UNCOUNTED_AFTER(call)                                                                                    \
    do {                                                                                                               \
        result_t call_answer = call;                                                                                   \
        if (call_answer == RESULT_OK)                                                                                  \
            uncounted_check_rarely(device_current());                                                                  \
        return call_answer;                                                                                            \
    } while (0)

result_t open_shared(result_t (*real)(pointer_t *, TYPE(ipcMemHandle), unsigned), pointer_t *pointer,
                     TYPE(ipcMemHandle) handle, unsigned flags)
{
    struct entry previous, entry = {.kind = HELD_OPENED, .count = 1};
    result_t answer = real(pointer, handle, flags);
    if (answer == RESULT_OK) {
        entry.key = (uintptr_t)*pointer;
        entry.owner = context_of_memory();
        if (table_take(HELD_OPENED, entry.key, &previous))
            entry.count += previous.count;
        table_put(&entry, &previous);
        report_opened(1);
    }
    CHECK_UNCOUNTED_AFTER(answer);
}

result_t close_shared(result_t (*real)(pointer_t), pointer_t pointer)
{
    struct entry previous, entry = {0};
    result_t answer = real(pointer);
    if (answer == RESULT_OK && table_take(HELD_OPENED, (uintptr_t)pointer, &entry)) {
        if (--entry.count > 0)
            table_put(&entry, &previous);
        report_opened(-1);
    }
    CHECK_UNCOUNTED_AFTER(answer);
}

static bool is_opened_in(const struct entry *entry, const void *context)
{
    return entry->kind == HELD_OPENED && entry->owner == context;
}

int take_opened_count(context_t context)
{
    struct entry entry;
    int count = 0;
    while (context != NULL && table_take_match(is_opened_in, context, &entry))
        count += (int)entry.count;
    return count;
}

void imported_freed(const struct entry *entry)
{
    report_opened(-(int)entry->count);
}

static atomic_bool has_imported; /* set with the first, never cleared */

static void note_imported(uint64_t key)
{
    struct entry previous, entry = {.kind = HELD_IMPORTED, .key = key, .device = DEVICE_NONE, .count = 1};
    atomic_store(&has_imported, true);
    if (table_put(&entry, &previous) && previous.kind == 0)
        report_opened(1);
}

bool take_imported(uint64_t key, struct entry *entry)
{
    return atomic_load_explicit(&has_imported, memory_order_relaxed) && table_take(HELD_IMPORTED, key, entry);
}

result_t import_pool(result_t (*real)(TYPE(memoryPool) *, void *, TYPE(memAllocationHandleType), unsigned long long),
                     TYPE(memoryPool) *pool, void *descriptor, TYPE(memAllocationHandleType) type,
                     unsigned long long flags)
{
    result_t answer = real(pool, descriptor, type, flags);
    if (answer == RESULT_OK)
        note_imported((uintptr_t)*pool);
    CHECK_UNCOUNTED_AFTER(answer);
}

result_t import_pointer(result_t (*real)(pointer_t *, TYPE(memoryPool), TYPE(memPoolPtrExportData) *),
                        pointer_t *pointer, TYPE(memoryPool) pool, TYPE(memPoolPtrExportData) *export_data)
{
    result_t answer = real(pointer, pool, export_data);
    if (answer == RESULT_OK)
        note_imported((uintptr_t)*pointer);
    CHECK_UNCOUNTED_AFTER(answer);
}

result_t import_memory(result_t (*real)(TYPE(externalMemory) *, const NAMED(EXTERNAL_MEMORY_HANDLE_DESC) *),
                       TYPE(externalMemory) *memory, const NAMED(EXTERNAL_MEMORY_HANDLE_DESC) *description)
{
    CHECK_UNCOUNTED_AFTER(real(memory, description));
}

result_t let_go_memory(result_t (*real)(TYPE(externalMemory)), TYPE(externalMemory) memory)
{
    CHECK_UNCOUNTED_AFTER(real(memory));
}
