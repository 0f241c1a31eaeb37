/* Sums up charged bytes that the driver's figure may not have: not yet, or not any more (early.h). */
#include "early.h"

#include "blocks.h"
#include "charge.h"
#include "held.h"
#include "pools.h"
#include "reclaim.h"
#include "spill.h"
#include "uncounted.h"

/* Adds an entry's charged bytes if the driver may not have taken them yet: it takes them at the first use of a library,
 * or at the first launch of a kernel or a graph. Managed memory may lie with the host. */
struct hidden_sum {
    int device;
    uint64_t *bytes;
};
static bool add_hidden(const struct entry *entry, const void *argument)
{
    const struct hidden_sum *sum = argument;
    bool is_before_first_launch = entry->kind == HELD_EXEC + (uint32_t)sum->device && entry->link != NULL;
    bool is_taken_by_use = entry->kind == HELD_MODULE || entry->kind == HELD_RESIDENCE || entry->kind == HELD_LOCAL ||
                           entry->kind == HELD_NODES || (entry->kind >= CONTEXT_LIMIT && entry->kind < HELD_CHUNK) ||
                           (entry->kind == HELD_POINTER && is_spilled(entry));
    if (is_before_first_launch)
        *sum->bytes += pool_chunk_bytes(entry->bytes);
    else if (is_taken_by_use && entry->device == sum->device)
        *sum->bytes += entry->bytes;
    return false;
}

static uint64_t hidden_bytes_on(int device)
{
    struct entry unused;
    uint64_t bytes = freed_in_order_bytes(device) + small_arrays_excess_bytes(device) + pools_idle_bytes(device, false);
    table_find(add_hidden, &(struct hidden_sum){device, &bytes}, &unused);
    return bytes;
}

void early_prepare(void)
{
    set_hidden_bytes(hidden_bytes_on);
}
