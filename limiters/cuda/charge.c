/* Charging memory to the grant (charge.h). */
#include "charge.h"

#include "device.h"
#include "driver.h"

#include "../core/ledger.h"
#include "../core/log.h"

#include <stdatomic.h>

/* Return bytes in MiB, rounded up. */
static unsigned long long mib(uint64_t bytes)
{
    return (bytes >> 20) + ((bytes & ((1 << 20) - 1)) != 0);
}

/* A program says "out of memory" where nvidia-smi shows a card that is nearly empty: its user is told once why. */
static void log_refusal(enum ledger_answer answer, int device, uint64_t bytes, uint64_t used, uint64_t limit)
{
    static atomic_flag noticed = ATOMIC_FLAG_INIT;
    enum log_level level = answer == LEDGER_OVER && !atomic_flag_test_and_set(&noticed) ? LOG_NOTICE : LOG_INFO;
    log_line(level, "device %d: %llu MiB refused: %llu of %llu MiB of the grant are in use (hetero ps counts refusals)",
             device, mib(bytes), mib(used), mib(limit));
}

CUresult charge_now(int device, uint64_t bytes)
{
    if (tenancy() == TENANCY_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (device == DEVICE_FOREIGN)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!counted(device))
        return CUDA_SUCCESS;
    struct region *region = tenant_region();
    if (region == NULL || bytes == 0)
        return region == NULL ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    uint64_t limit = terms_memory(tenant_terms(device));
    enum ledger_answer answer = ledger_reserve(region, (unsigned)device, bytes, limit);
    if (answer == LEDGER_GRANTED)
        return CUDA_SUCCESS;
    log_refusal(answer, device, bytes, ledger_used(region, (unsigned)device), limit);
    return answer == LEDGER_OVER ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_PERMITTED;
}

CUresult charge(int device, uint64_t bytes)
{
    if (bytes > 0 && counted(device) && !charge_fits(device, bytes))
        more_room(device, bytes); /* what is kept of freed memory is better used than refused */
    return charge_now(device, bytes);
}

bool charge_fits(int device, uint64_t bytes)
{
    struct region *region = tenant_region();
    uint64_t limit = terms_memory(tenant_terms(device));
    return region != NULL && bytes <= limit && ledger_used(region, (unsigned)device) <= limit - bytes;
}

bool charge_within(int device)
{
    return ledger_used(tenant_region(), (unsigned)device) <= terms_memory(tenant_terms(device));
}

bool charge_held(int device, uint64_t bytes)
{
    struct region *region = tenant_region();
    if (region == NULL || ledger_reserve(region, (unsigned)device, bytes, UINT64_MAX) != LEDGER_GRANTED)
        return false;
    return charge_within(device);
}

static void (*givers[HELD_EXEC])(const struct entry *);
static void (*room_maker)(int, uint64_t);

void give_back_by(uint32_t kind, void (*give)(const struct entry *))
{
    givers[kind] = give;
}

void give_back(const struct entry *entry)
{
    if (entry->kind < HELD_EXEC && givers[entry->kind] != NULL)
        givers[entry->kind](entry);
}

void give_back_bytes(const struct entry *entry)
{
    refund(entry->device, entry->bytes);
}

void more_room_by(void (*make)(int device, uint64_t bytes))
{
    room_maker = make;
}

void more_room(int device, uint64_t bytes)
{
    room_maker(device, bytes);
}

CUresult settle(CUresult answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link)
{
    if (!counted(device))
        return answer;
    if (answer != CUDA_SUCCESS) {
        refund(device, bytes);
        return answer;
    }
    struct entry entry = {.key = key,
                          .kind = kind,
                          .device = device,
                          .bytes = bytes,
                          .owner = context_current(),
                          .link = link},
                 previous;
    if (!table_put(&entry, &previous))
        log_line(LOG_ERROR, "no memory to remember an allocation: it stays charged"); /* never too little */
    else if (previous.kind != 0)
        give_back(&previous); /* what was there is gone, or the driver would not reuse its name */
    return answer;
}

CUresult settle_pointer(CUresult answer, const CUdeviceptr *pointer, int device, uint64_t bytes, void *link)
{
    return settle(answer, HELD_POINTER, answer == CUDA_SUCCESS ? *pointer : 0, device, bytes, link);
}

/* What entries link to whose memory the host holds though it was asked of the device. */
static char spilled;

bool is_spilled(const struct entry *entry)
{
    return entry->link == &spilled;
}

bool spills(CUresult answer, int device)
{
    return answer == CUDA_ERROR_OUT_OF_MEMORY && counted(device) &&
           (terms_flags(tenant_terms(device)) & HETERO_FLAG_SPILL) != 0;
}

CUresult settle_spill(CUdeviceptr *pointer, int device, uint64_t bytes, uint64_t charged)
{
    CUresult answer = REAL(cuMemAllocManaged)(pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    return settle_pointer(answer, pointer, device, charged, &spilled);
}

CUresult allocate_spilled(CUdeviceptr *pointer, int device, uint64_t bytes)
{
    CUresult refused = charge(device, bytes);
    return refused != CUDA_SUCCESS ? refused : settle_spill(pointer, device, bytes, bytes);
}

static bool lives_in(const struct entry *entry, const void *context)
{
    return entry->owner == context;
}

void refund_context(CUcontext context)
{
    struct entry entry;
    while (context != NULL && table_take_match(lives_in, context, &entry))
        give_back(&entry);
}
