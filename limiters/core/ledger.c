/* Reserves, releases and reads bytes, in short sections under the region's lock. No driver call is made under it. */
#include "ledger.h"

#include "fault.h"

static uint64_t with_excess(const struct region *region, unsigned device, uint64_t used_bytes)
{
    uint64_t excess_bytes = 0, sum_bytes;
    if (region->grant != NULL)
        excess_bytes = __atomic_load_n(&region->grant->devices[device].excess_bytes, __ATOMIC_RELAXED);
    return __builtin_add_overflow(used_bytes, excess_bytes, &sum_bytes) ? UINT64_MAX : sum_bytes;
}

/* With the lock held: the bytes that the grant holds. The tenant can write the region, so they are at least the bytes
 * that this process holds. */
static uint64_t held_bytes(const struct region *region, unsigned device)
{
    uint64_t used_bytes = region->shared->devices[device].used_bytes, own_bytes = region->own_bytes[device];
    return with_excess(region, device, used_bytes > own_bytes ? used_bytes : own_bytes);
}

static bool fits(const struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes)
{
    return bytes <= limit_bytes && held_bytes(region, device) <= limit_bytes - bytes;
}

/* The same, after the slots of dead processes are swept if necessary. */
static bool fits_swept(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes)
{
    if (fits(region, device, bytes, limit_bytes))
        return true;
    region_sweep(region);
    return fits(region, device, bytes, limit_bytes);
}

bool ledger_fits(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes)
{
    if (!region_lock(region))
        return false;
    bool is_granted = fits_swept(region, device, bytes, limit_bytes);
    region_unlock(region);
    return is_granted;
}

enum ledger_answer ledger_reserve_if_free(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes)
{
    if (!region_lock(region))
        return LEDGER_BROKEN;
    struct hetero_region_device *device_usage = &region->shared->devices[device];
    bool is_granted = fits_swept(region, device, bytes, limit_bytes);
    if (is_granted) {
        /* The slot first: if the process is killed between the two writes, the sweep of the slot corrects the sum. */
        region->own_bytes[device] += bytes;
        region_slot(region)->used_bytes[device] = region->own_bytes[device];
        device_usage->used_bytes += bytes;
        device_usage->reserved_total_bytes += bytes;
        if (device_usage->used_bytes > device_usage->peak_bytes)
            device_usage->peak_bytes = device_usage->used_bytes;
    }
    region_unlock(region);
    return is_granted ? LEDGER_GRANTED : LEDGER_OVER;
}

enum ledger_answer ledger_reserve(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes)
{
    enum ledger_answer answer = ledger_reserve_if_free(region, device, bytes, limit_bytes);
    if (answer == LEDGER_OVER && region_lock(region)) {
        region->shared->devices[device].denied_allocation_count++;
        region_unlock(region);
    }
    return answer;
}

void ledger_release(struct region *region, unsigned device, uint64_t bytes)
{
    if (!region_lock(region)) {
        if (!FAULT(late_release_forgotten))
            atomic_fetch_add(&region->late_released_bytes[device], bytes); /* released under the next lock */
        return;
    }
    /* A child may free memory that its parent allocated before the fork and that it is not charged for. */
    if (region->own_bytes[device] >= bytes) {
        region->own_bytes[device] -= bytes;
        region->returned_bytes[device] += bytes;
        region_slot(region)->used_bytes[device] = region->own_bytes[device];
        region->shared->devices[device].used_bytes -= bytes;
    }
    region_unlock(region);
}

bool ledger_returned(struct region *region, unsigned device, uint64_t *own_bytes, uint64_t *others_bytes)
{
    if (!region_lock(region))
        return false;
    region_sweep(region);
    const struct hetero_region_device *device_usage = &region->shared->devices[device];
    *own_bytes = region->returned_bytes[device];
    *others_bytes = device_usage->reserved_total_bytes - device_usage->used_bytes - *own_bytes;
    region_unlock(region);
    return true;
}

uint64_t ledger_own(struct region *region, unsigned device, uint64_t *returned_bytes)
{
    pthread_mutex_lock(&region->process_mutex);
    uint64_t bytes = region->own_bytes[device];
    *returned_bytes = region->returned_bytes[device];
    pthread_mutex_unlock(&region->process_mutex);
    return bytes;
}

void ledger_report(struct region *region, enum hetero_report kind, unsigned device, int64_t change)
{
    if (!region_lock(region))
        return;
    uint64_t *value = &region->reports[kind][device];
    uint64_t decrease = change < 0 ? -(uint64_t)change : 0;
    *value = decrease == 0 ? *value + (uint64_t)change : *value > decrease ? *value - decrease : 0;
    region_publish_report(region);
    region_unlock(region);
}

uint64_t ledger_used(struct region *region, unsigned device)
{
    /* A process that only reads takes no slot: slots are for processes that allocate. */
    if ((region->slot_index < 0 && !FAULT(readers_take_slots)) || !region_lock(region))
        return with_excess(region, device, region_sum(region, device));
    region_sweep(region);
    uint64_t used_bytes = held_bytes(region, device);
    region_unlock(region);
    return used_bytes;
}
