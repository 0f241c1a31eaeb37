/* What is charged and the driver's figure may not have: not yet, or not any more (early.h). */
#include "early.h"

#include "blocks.h"
#include "charge.h"
#include "held.h"
#include "pools.h"
#include "room.h"
#include "uncounted.h"

/* Adds to `bytes` what an entry is charged for that the driver may not have taken yet: with the first use of a library,
 * the first launch of a kernel or a graph, and with managed memory that the host holds. */
struct early {
    int device;
    uint64_t *bytes;
};
static bool add_early(const struct entry *entry, const void *early_)
{
    const struct early *early = early_;
    bool first_launch = entry->kind == HELD_EXEC + (uint32_t)early->device && entry->link != NULL;
    bool taken_by_use = entry->kind == HELD_MODULE || entry->kind == HELD_RESIDENCE || entry->kind == HELD_LOCAL ||
                        entry->kind == HELD_NODES || (entry->kind >= CONTEXT_LIMIT && entry->kind < HELD_CHUNK) ||
                        (entry->kind == HELD_POINTER && is_spilled(entry));
    if (first_launch)
        *early->bytes += pool_chunks(entry->bytes);
    else if (taken_by_use && entry->device == early->device)
        *early->bytes += entry->bytes;
    return false;
}

static uint64_t early_and_late(int device)
{
    struct entry none;
    uint64_t bytes = freed_in_order(device) + small_arrays_beyond(device) + pools_idle(device, false);
    table_find(add_early, &(struct early){device, &bytes}, &none);
    return bytes;
}

void early_prepare(void)
{
    hidden_by(early_and_late);
}
