/* Counts the references to blocks of physical memory (physical.h). A block is charged when it is created and given back
 * with the last reference.
 *
 * An exported block may live on in a descriptor or in another process. The driver counts it for no process while only
 * descriptors have it. So it is given back if the card is seen to have its memory back, and stays charged otherwise.
 */
#include "physical.h"

#include "counted.h"
#include "held.h"

#include "../core/fault.h"

#include <pthread.h>
#include <stdlib.h>

/* Guards handles' counts in the table together with their blocks' references. Never held across a driver call. */
static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;

void physical_after_fork(void)
{
    handles_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static const struct card_use no_use = {0};

struct card_use use_before_drop(const struct vmm_block *block)
{
    return block != NULL && atomic_load(&block->is_exported) ? card_use(block->device) : no_use;
}

uint64_t drop_after_use(struct vmm_block *block, struct card_use use_before)
{
    if (block == NULL || atomic_fetch_sub(&block->reference_count, 1) > 1)
        return 0;
    if (block->is_imported)
        report_opened(-1);
    bool is_exported = atomic_load(&block->is_exported);
    uint64_t left_bytes = 0;
    if (is_exported && !FAULT(exported_blocks_refunded) && !card_got_back(block->device, use_before, block->bytes)) {
        leave_charged(block->device, block->bytes);
        left_bytes = block->bytes;
    } else {
        refund(block->device, block->bytes);
        report_shared(block->device, is_exported ? -(int64_t)block->bytes : 0);
    }
    free(block);
    return left_bytes;
}

void drop_reference(struct vmm_block *block)
{
    drop_after_use(block, no_use);
}

void drop_reference_asked(struct vmm_block *block)
{
    drop_after_use(block, use_before_drop(block));
}

struct vmm_block *change_handle_count(uint64_t handle, int change)
{
    struct entry entry = {0}, previous;
    pthread_mutex_lock(&handles_mutex);
    if (table_take(HELD_HANDLE, handle, &entry)) {
        entry.count += (uint64_t)(int64_t)change;
        if (entry.count > 0)
            table_put(&entry, &previous);
    }
    pthread_mutex_unlock(&handles_mutex);
    return entry.link;
}

void add_handle(uint64_t handle, struct vmm_block *block)
{
    struct entry previous, entry = {.key = handle, .kind = HELD_HANDLE, .count = 1, .link = block};
    pthread_mutex_lock(&handles_mutex);
    table_put(&entry, &previous);
    pthread_mutex_unlock(&handles_mutex);
}

struct vmm_block *block_of_handle(uint64_t handle)
{
    struct entry entry;
    pthread_mutex_lock(&handles_mutex);
    struct vmm_block *block = table_get(HELD_HANDLE, handle, &entry) ? entry.link : NULL;
    if (block != NULL)
        atomic_fetch_add(&block->reference_count, 1);
    pthread_mutex_unlock(&handles_mutex);
    return block;
}

void note_exported(struct vmm_block *block)
{
    if (block != NULL && !block->is_imported && !atomic_exchange(&block->is_exported, true))
        report_shared(block->device, (int64_t)block->bytes);
}
