/* Reserve, release, read: short sections under the region's lock, which is never held across a driver call. */
#include "ledger.h"

#include <stddef.h>

enum ledger_answer ledger_reserve(struct region *region, unsigned device, uint64_t bytes, uint64_t limit)
{
    if (!region_lock(region))
        return LEDGER_BROKEN;
    struct hetero_region_device *total = &region->shared->devices[device];
    struct hetero_region_slot *mine = region_slot(region);
    enum ledger_answer answer = LEDGER_BROKEN;
    if (mine != NULL) {
        if (bytes > limit || total->used > limit - bytes)
            region_sweep(region);
        if (bytes > limit || total->used > limit - bytes) {
            total->denied++;
            answer = LEDGER_OVER;
        } else {
            /* The slot first: what a kill between the two leaves behind is swept with the slot. */
            mine->used[device] += bytes;
            total->used += bytes;
            if (total->used > total->peak)
                total->peak = total->used;
            answer = LEDGER_GRANTED;
        }
    }
    region_unlock(region);
    return answer;
}

void ledger_release(struct region *region, unsigned device, uint64_t bytes)
{
    if (!region_lock(region))
        return;
    struct hetero_region_slot *mine = region_slot(region);
    /* A child that frees what its parent allocated before the fork has nothing of that in its own slot. */
    if (mine != NULL && mine->used[device] >= bytes) {
        mine->used[device] -= bytes;
        region->shared->devices[device].used -= bytes;
    }
    region_unlock(region);
}

uint64_t ledger_used(struct region *region, unsigned device)
{
    if (!region_lock(region))
        return 0;
    region_sweep(region);
    uint64_t used = region->shared->devices[device].used;
    region_unlock(region);
    return used;
}
