/* Reserve, release, read: short sections under the region's lock, which is never held across a driver call. */
#include "ledger.h"

#include "fault.h"

static uint64_t with_excess(const struct region *region, unsigned device, uint64_t used)
{
    uint64_t excess = 0, sum;
    if (region->grant != NULL)
        excess = __atomic_load_n(&region->grant->devices[device].excess, __ATOMIC_RELAXED);
    return __builtin_add_overflow(used, excess, &sum) ? UINT64_MAX : sum;
}

/* With the lock held: what the grant holds. Whatever the region says, it is no less than what this process does. */
static uint64_t held(const struct region *region, unsigned device)
{
    uint64_t used = region->shared->devices[device].used, own = region->own[device];
    return with_excess(region, device, used > own ? used : own);
}

static bool fits(const struct region *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    return bytes <= limit && held(region, device) <= limit - bytes;
}

/* The same, when dead processes hold nothing any more. */
static bool fits_swept(struct region *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    if (fits(region, device, bytes, limit))
        return true;
    region_sweep(region);
    return fits(region, device, bytes, limit);
}

bool ledger_fits(struct region *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    if (!region_lock(region))
        return false;
    bool granted = fits_swept(region, device, bytes, limit);
    region_unlock(region);
    return granted;
}

enum ledger_answer ledger_try(struct region *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    if (!region_lock(region))
        return LEDGER_BROKEN;
    struct hetero_region_device *total = &region->shared->devices[device];
    bool granted = fits_swept(region, device, bytes, limit);
    if (granted) {
        /* The slot first: what a kill between the two leaves behind is swept with the slot. */
        region->own[device] += bytes;
        region_slot(region)->used[device] = region->own[device];
        total->used += bytes;
        total->granted += bytes;
        if (total->used > total->peak)
            total->peak = total->used;
    }
    region_unlock(region);
    return granted ? LEDGER_GRANTED : LEDGER_OVER;
}

enum ledger_answer ledger_reserve(struct region *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    enum ledger_answer answer = ledger_try(region, device, bytes, limit);
    if (answer == LEDGER_OVER && region_lock(region)) {
        region->shared->devices[device].denied++;
        region_unlock(region);
    }
    return answer;
}

void ledger_release(struct region *region, unsigned device, uint64_t bytes)
{
    if (!region_lock(region)) {
        if (!FAULT(late_release_forgotten))
            atomic_fetch_add(&region->owed[device], bytes); /* given back with the next lock */
        return;
    }
    /* A child that frees what its parent allocated before the fork holds nothing of that. */
    if (region->own[device] >= bytes) {
        region->own[device] -= bytes;
        region->returned[device] += bytes;
        region_slot(region)->used[device] = region->own[device];
        region->shared->devices[device].used -= bytes;
    }
    region_unlock(region);
}

bool ledger_returned(struct region *region, unsigned device, uint64_t *own, uint64_t *others)
{
    if (!region_lock(region))
        return false;
    region_sweep(region);
    const struct hetero_region_device *total = &region->shared->devices[device];
    *own = region->returned[device];
    *others = total->granted - total->used - *own;
    region_unlock(region);
    return true;
}

uint64_t ledger_own(struct region *region, unsigned device, uint64_t *returned)
{
    pthread_mutex_lock(&region->mine);
    uint64_t bytes = region->own[device];
    *returned = region->returned[device];
    pthread_mutex_unlock(&region->mine);
    return bytes;
}

void ledger_say(struct region *region, enum hetero_said kind, unsigned device, int64_t change)
{
    if (!region_lock(region))
        return;
    uint64_t *bytes = &region->said[kind][device];
    uint64_t less = change < 0 ? -(uint64_t)change : 0;
    *bytes = less == 0 ? *bytes + (uint64_t)change : *bytes > less ? *bytes - less : 0;
    region_say(region);
    region_unlock(region);
}

uint64_t ledger_used(struct region *region, unsigned device)
{
    /* Whoever only looks takes no slot: there are as many as there are processes that allocate, not that look. */
    if ((region->slot < 0 && !FAULT(readers_take_slots)) || !region_lock(region))
        return with_excess(region, device, region_sum(region, device));
    region_sweep(region);
    uint64_t used = held(region, device);
    region_unlock(region);
    return used;
}
