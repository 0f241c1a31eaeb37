/* Charging memory to the grant (charge.h). */
#include "charge.h"

#include "device.h"

#include "../core/fault.h"
#include "../core/ledger.h"
#include "../core/log.h"

#include <stdatomic.h>

/* Bytes in MiB, rounded up. */
static unsigned long long mib(uint64_t bytes)
{
    return (bytes >> 20) + ((bytes & ((1 << 20) - 1)) != 0);
}

/* A program fails with "out of memory" while nvidia-smi shows a nearly empty card. A notice tells its user once why. */
static void log_refusal(enum ledger_answer answer, int device, uint64_t bytes, uint64_t used_bytes,
                        uint64_t limit_bytes)
{
    static atomic_flag is_noticed = ATOMIC_FLAG_INIT;
    enum log_level level = answer == LEDGER_OVER && !atomic_flag_test_and_set(&is_noticed) ? LOG_NOTICE : LOG_INFO;
    log_line(level, "device %d: %llu MiB refused: %llu of %llu MiB of the grant are in use (hetero ps counts refusals)",
             device, mib(bytes), mib(used_bytes), mib(limit_bytes));
}

result_t charge_without_reclaim(int device, uint64_t bytes)
{
    if (tenancy() == TENANCY_REFUSED)
        return ERROR(NOT_PERMITTED);
    if (device == DEVICE_FOREIGN)
        return ERROR(OUT_OF_MEMORY);
    if (!counted(device))
        return RESULT_OK;
    struct region *region = tenant_region();
    if (region == NULL || bytes == 0)
        return region == NULL ? ERROR(NOT_PERMITTED) : RESULT_OK;
    uint64_t limit_bytes = terms_memory(tenant_terms(device));
    enum ledger_answer answer = ledger_reserve(region, (unsigned)device, bytes, limit_bytes);
    if (answer == LEDGER_GRANTED)
        return RESULT_OK;
    log_refusal(answer, device, bytes, ledger_used(region, (unsigned)device), limit_bytes);
    return answer == LEDGER_OVER ? ERROR(OUT_OF_MEMORY) : ERROR(NOT_PERMITTED);
}

bool charge_if_free(int device, uint64_t bytes)
{
    struct region *region = counted(device) ? tenant_region() : NULL;
    return region != NULL &&
           (bytes == 0 || ledger_reserve_if_free(region, (unsigned)device, bytes, terms_memory(tenant_terms(device))) ==
                              LEDGER_GRANTED);
}

result_t charge(int device, uint64_t bytes)
{
    if (charge_if_free(device, bytes))
        return RESULT_OK;
    if (bytes > 0 && counted(device))
        reclaim(device, bytes); /* freed memory that the driver keeps may make it fit */
    return charge_without_reclaim(device, bytes);
}

bool charge_fits(int device, uint64_t bytes)
{
    struct region *region = tenant_region();
    return region != NULL && ledger_fits(region, (unsigned)device, bytes, terms_memory(tenant_terms(device)));
}

bool is_within_limit(int device)
{
    return charge_fits(device, 0);
}

uint64_t grant_left_bytes(int device, uint64_t *limit_bytes)
{
    struct region *region = device == DEVICE_FOREIGN ? NULL : tenant_region();
    *limit_bytes = region == NULL ? 0 : terms_memory(tenant_terms(device));
    uint64_t used_bytes = region == NULL ? 0 : ledger_used(region, (unsigned)device);
    return used_bytes < *limit_bytes ? *limit_bytes - used_bytes : 0;
}

bool charge_unconditionally(int device, uint64_t bytes)
{
    struct region *region = tenant_region();
    if (region == NULL || ledger_reserve(region, (unsigned)device, bytes, UINT64_MAX) != LEDGER_GRANTED)
        return false;
    return is_within_limit(device);
}

static void (*refund_functions[HELD_EXEC])(const struct entry *);
static void (*reclaimer)(int, uint64_t);

void set_refund_function(uint32_t kind, void (*refund_function)(const struct entry *))
{
    refund_functions[kind] = refund_function;
}

void give_back(const struct entry *entry)
{
    if (entry->kind < HELD_EXEC && refund_functions[entry->kind] != NULL)
        refund_functions[entry->kind](entry);
}

void give_back_bytes(const struct entry *entry)
{
    refund(entry->device, entry->bytes);
}

void set_reclaimer(void (*function)(int device, uint64_t bytes))
{
    reclaimer = function;
}

void reclaim(int device, uint64_t bytes)
{
    reclaimer(device, bytes);
}

void keep_entry(const struct entry *entry)
{
    struct entry previous;
    if (!table_put(entry, &previous))
        log_line(LOG_ERROR, "no memory to remember an allocation: it stays charged"); /* rather than too little */
    else if (previous.kind != 0)
        give_back(&previous); /* the driver reuses a name only when its object was freed */
}

result_t settle(result_t answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link)
{
    if (!counted(device))
        return answer;
    if (answer != RESULT_OK) {
        refund(device, bytes);
        return answer;
    }
    keep_entry(&(struct entry){
        .key = key, .kind = kind, .device = device, .bytes = bytes, .owner = context_of_memory(), .link = link});
    return answer;
}

result_t settle_pointer(result_t answer, const pointer_t *pointer, int device, uint64_t bytes, void *link)
{
    return settle(answer, HELD_POINTER, answer == RESULT_OK ? (uintptr_t)*pointer : 0, device, bytes, link);
}

static bool lives_in(const struct entry *entry, const void *context)
{
    return FAULT(every_context_ends) || entry->owner == context;
}

void refund_context(context_t context)
{
    struct entry entry;
    while (context != NULL && table_take_match(lives_in, context, &entry))
        give_back(&entry);
}
