/* Charges sub-allocations by their blocks (blocks.h). */
#include "blocks.h"

#include "charge.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"

#include <pthread.h>

/* Guards the counts of blocks and of small arrays. Never held across a charge or a call of the driver. */
static pthread_mutex_t blocks_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Memory of a device that is charged together: the bytes in use, and the bytes that are charged for them. */
struct joint_charge {
    uint64_t live_bytes, charged_bytes;
};
static struct joint_charge small_arrays[HETERO_MAX_DEVICES], managed_memory[HETERO_MAX_DEVICES];
static uint64_t kept_array_bytes[HETERO_MAX_DEVICES]; /* charged for freed arrays whose blocks the driver may keep */

/* Addresses that an entry's `link` has: of a sub-allocation; of a charged block; of a block that is charged though it
 * is part of its context; of an allocation that has its context's block; of managed memory. */
static char suballocation_tag, charged_tag, charged_context_tag, context_block_tag, managed_tag;

void blocks_after_fork(void)
{
    blocks_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        small_arrays[device] = managed_memory[device] = (struct joint_charge){0};
        kept_array_bytes[device] = 0;
    }
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

uint64_t block_bytes_of(uint64_t bytes)
{
    if (bytes < SUBALLOCATED_BELOW)
        return 0;
    return FAULT_VALUE(sizes_unrounded, round_up(bytes, BLOCK_BYTES), bytes);
}

bool is_suballocation(const struct entry *entry)
{
    return entry->link == &suballocation_tag;
}

/* With `blocks_mutex` held: whether nothing lies in the context's block. If so, the block is forgotten. */
static bool context_block_is_idle(context_t context)
{
    struct entry context_entry, block_entry;
    if (!table_get(CONTEXT_BLOCK, (uintptr_t)context, &context_entry))
        return true;
    if (context_entry.key_or_address == UINT64_MAX ||
        (table_get(HELD_BLOCK, context_entry.key_or_address, &block_entry) &&
         (block_entry.count > 0 || block_entry.link != NULL)))
        return false;
    table_take(CONTEXT_BLOCK, context_entry.key, &context_entry);
    table_take(HELD_BLOCK, context_entry.key_or_address, &block_entry);
    return true;
}

/* Count a sub-allocation in its block. False: the block is not known. A context's empty block is known, too. If another
 * context sub-allocates at its address, the first context no longer has that block. */
static bool count_suballocation(uint64_t block_number, context_t context)
{
    struct entry entry;
    pthread_mutex_lock(&blocks_mutex);
    bool is_known = table_add(HELD_BLOCK, block_number, 1, &entry);
    if (is_known && entry.count == 1 && entry.owner != context && entry.link == NULL) {
        table_add(HELD_BLOCK, block_number, -1, &entry);
        is_known = !context_block_is_idle(entry.owner);
    }
    pthread_mutex_unlock(&blocks_mutex);
    return is_known;
}

/* Add a block with its first sub-allocation. False: another thread has added it meanwhile. */
static bool add_block(uint64_t block_number, int device, context_t context, bool is_context_block)
{
    struct entry previous, existing,
        entry = {.key = block_number,
                 .kind = HELD_BLOCK,
                 .device = device,
                 .count = 1,
                 .owner = CONTEXTS_HAVE_BLOCKS ? context : NULL,
                 .link = is_context_block ? NULL : &charged_tag};
    struct entry context_entry = {
        .key = (uintptr_t)context, .kind = CONTEXT_BLOCK, .key_or_address = block_number, .owner = context};
    pthread_mutex_lock(&blocks_mutex);
    bool is_new = !table_get(HELD_BLOCK, block_number, &existing);
    if (is_new && is_context_block)
        is_new = context_block_is_idle(context) && table_put(&context_entry, &previous);
    is_new = is_new && table_put(&entry, &previous);
    pthread_mutex_unlock(&blocks_mutex);
    return is_new;
}

static result_t charge_suballocation(uint64_t block_number, int device, context_t context)
{
    if (count_suballocation(block_number, context) ||
        (CONTEXTS_HAVE_BLOCKS && add_block(block_number, device, context, true)))
        return RESULT_OK;
    result_t charge_result = charge(device, BLOCK_BYTES);
    if (charge_result != RESULT_OK || add_block(block_number, device, context, false))
        return charge_result;
    refund(device, BLOCK_BYTES);
    return count_suballocation(block_number, context) ? RESULT_OK : ERROR(OUT_OF_MEMORY);
}

result_t settle_suballocation_of(uint32_t kind, pointer_t pointer, int device, void *owner, result_t (*undo)(pointer_t))
{
    const struct entry entry = {
        .key = (uintptr_t)pointer, .kind = kind, .device = device, .owner = owner, .link = &suballocation_tag};
    result_t answer = charge_suballocation(entry.key / BLOCK_BYTES, device, context_of_memory());
    if (answer != RESULT_OK)
        undo(pointer);
    else
        keep_entry(&entry);
    return answer;
}

result_t settle_suballocation(result_t answer, pointer_t *pointer, int device)
{
    if (answer != RESULT_OK || (uintptr_t)*pointer == 0 || !counted(device))
        return answer;
    answer = settle_suballocation_of(HELD_POINTER, *pointer, device, context_of_memory(), DRIVER(MemFree_v2));
    if (answer != RESULT_OK)
        *pointer = (pointer_t)0;
    return answer;
}

static bool is_empty_block(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_BLOCK && entry->count == 0 && entry->device == *(const int *)device;
}

void keep_array_charged(int device, uint64_t bytes)
{
    pthread_mutex_lock(&blocks_mutex);
    kept_array_bytes[device] += bytes;
    pthread_mutex_unlock(&blocks_mutex);
}

static uint64_t take_kept_arrays(int device)
{
    pthread_mutex_lock(&blocks_mutex);
    uint64_t bytes = kept_array_bytes[device];
    kept_array_bytes[device] = 0;
    pthread_mutex_unlock(&blocks_mutex);
    return bytes;
}

/* A runtime that frees blocks for want of memory also frees scratch that no kernel uses (../hsa/scratch.c). */
static bool is_scratch(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_SCRATCH && entry->device == *(const int *)device;
}

/* The runtime frees its empty blocks when an allocation fails: so one of the card's whole memory is asked for. A block
 * that gets a sub-allocation meanwhile is charged anew, since it was forgotten. One that others may have open stays
 * charged. */
bool blocks_trim(int device)
{
    struct entry entry, shared_entry;
    uint64_t freed_bytes = take_kept_arrays(device);
    size_t total_bytes;
    pointer_t pointer;
    while (BLOCKS_ARE_KEPT && table_take_match(is_empty_block, &device, &entry))
        freed_bytes += table_get(HELD_SHARED, entry.key * BLOCK_BYTES, &shared_entry) ? 0 : BLOCK_BYTES;
    bool has_kept = freed_bytes > 0 ||
                    (BLOCKS_ARE_KEPT && !FAULT(unused_scratch_kept) && table_find(is_scratch, &device, &entry));
    if (has_kept && DRIVER(DeviceTotalMem_v2)(&total_bytes, ordinal_of(device)) == RESULT_OK &&
        DRIVER(MemAlloc_v2)(&pointer, total_bytes) == RESULT_OK)
        DRIVER(MemFree_v2)(pointer);
    refund(device, freed_bytes);
    return has_kept;
}

uint64_t chargeable_bytes(int device, uint64_t bytes, uint64_t block_bytes)
{
    context_t context = CONTEXTS_HAVE_BLOCKS && block_bytes > 0 && counted(device) ? context_of_memory() : NULL;
    struct entry previous,
        entry = {.key = (uintptr_t)context, .kind = CONTEXT_BLOCK, .key_or_address = UINT64_MAX, .owner = context};
    if (context == NULL || charge_fits(device, block_bytes) || !charge_fits(device, bytes))
        return block_bytes;
    pthread_mutex_lock(&blocks_mutex);
    bool has_taken_block = context_block_is_idle(context) && table_put(&entry, &previous);
    pthread_mutex_unlock(&blocks_mutex);
    return has_taken_block ? bytes : block_bytes;
}

static uint64_t managed_batch_bytes(void)
{
    return FAULT_VALUE(managed_memory_unbatched, MANAGED_BATCH, 1);
}

static void refund_managed(int device, uint64_t bytes)
{
    struct joint_charge *joint = &managed_memory[device];
    pthread_mutex_lock(&blocks_mutex);
    joint->live_bytes -= bytes;
    uint64_t refund_bytes = joint->charged_bytes - round_up(joint->live_bytes, managed_batch_bytes());
    joint->charged_bytes -= refund_bytes;
    pthread_mutex_unlock(&blocks_mutex);
    refund(device, refund_bytes);
}

/* If an allocation has its context's block, free that block for sub-allocations. */
static void free_context_block(const struct entry *entry)
{
    struct entry context_entry;
    if (entry->link == &context_block_tag)
        table_take(CONTEXT_BLOCK, (uintptr_t)entry->owner, &context_entry);
}

result_t settle_blocks(result_t answer, const pointer_t *pointer, int device, uint64_t block_bytes,
                       uint64_t charged_bytes)
{
    if (block_bytes == charged_bytes)
        return settle_pointer(answer, pointer, device, charged_bytes, NULL);
    if (answer != RESULT_OK)
        free_context_block(&(struct entry){.link = &context_block_tag, .owner = context_of_memory()});
    return settle_pointer(answer, pointer, device, charged_bytes, &context_block_tag);
}

/* A sub-allocation was freed: the bytes that are charged for its block, if that is freed with it. `is_block_kept`: the
 * driver may keep the block. */
static uint64_t suballocation_freed(const struct entry *entry, bool is_block_kept)
{
    struct entry block_entry;
    pthread_mutex_lock(&blocks_mutex);
    bool is_last = table_add(HELD_BLOCK, entry->key / BLOCK_BYTES, -1, &block_entry) && block_entry.count == 0 &&
                   block_entry.link == &charged_tag && !is_block_kept;
    is_last = is_last &&
              table_take(HELD_BLOCK, block_entry.key, &block_entry); /* its context may end in another thread */
    pthread_mutex_unlock(&blocks_mutex);
    return is_last ? BLOCK_BYTES : 0;
}

void pointer_freed(const struct entry *entry)
{
    if (is_suballocation(entry)) {
        refund(entry->device, suballocation_freed(entry, BLOCKS_ARE_KEPT));
    } else if (entry->link == &managed_tag) {
        refund_managed(entry->device, entry->bytes);
    } else {
        give_back_bytes(entry);
        free_context_block(entry);
    }
}

struct entry shared_entry_of(const struct entry *allocation)
{
    bool is_suballocated = is_suballocation(allocation);
    return (struct entry){.kind = HELD_SHARED,
                          .key = is_suballocated ? allocation->key / BLOCK_BYTES * BLOCK_BYTES : allocation->key,
                          .device = allocation->device,
                          .bytes = is_suballocated ? BLOCK_BYTES : allocation->bytes,
                          .owner = allocation->owner};
}

uint64_t shared_freed_bytes(const struct entry *entry)
{
    if (is_suballocation(entry))
        return suballocation_freed(entry, false);
    free_context_block(entry);
    return entry->bytes;
}

result_t charge_shared(const struct entry *allocation)
{
    struct entry block_entry, previous;
    uint64_t key = allocation->key / BLOCK_BYTES;
    if (!is_suballocation(allocation) || !table_get(HELD_BLOCK, key, &block_entry) || block_entry.link != NULL)
        return RESULT_OK;
    result_t charge_result = charge(allocation->device, BLOCK_BYTES);
    if (charge_result != RESULT_OK)
        return charge_result;
    pthread_mutex_lock(&blocks_mutex);
    bool is_uncharged = table_get(HELD_BLOCK, key, &block_entry) && block_entry.link == NULL;
    block_entry.link = &charged_context_tag;
    if (is_uncharged)
        table_put(&block_entry, &previous);
    pthread_mutex_unlock(&blocks_mutex);
    refund(allocation->device, is_uncharged ? 0 : BLOCK_BYTES);
    return RESULT_OK;
}

void block_context_ended(const struct entry *entry)
{
    if (entry->link != NULL)
        refund(entry->device, BLOCK_BYTES);
}

/* Charge `bytes` more to a joint charge, which grows in units of `unit_bytes`. */
static result_t charge_jointly(struct joint_charge *joint, int device, uint64_t bytes, uint64_t unit_bytes)
{
    for (uint64_t growth_bytes = 0;;) {
        pthread_mutex_lock(&blocks_mutex);
        joint->charged_bytes += growth_bytes;
        uint64_t live_bytes = bytes > UINT64_MAX - joint->live_bytes ? UINT64_MAX : joint->live_bytes + bytes;
        growth_bytes = live_bytes > joint->charged_bytes ? round_up(live_bytes - joint->charged_bytes, unit_bytes) : 0;
        joint->live_bytes += growth_bytes == 0 ? bytes : 0;
        pthread_mutex_unlock(&blocks_mutex);
        result_t charge_result = charge(device, growth_bytes);
        if (growth_bytes == 0 || charge_result != RESULT_OK)
            return charge_result;
    }
}

result_t charge_small_array(int device, uint64_t bytes)
{
    return charge_jointly(&small_arrays[device], device, bytes, BLOCK_BYTES);
}

void refund_small_array(int device, uint64_t bytes)
{
    pthread_mutex_lock(&blocks_mutex);
    small_arrays[device].live_bytes -= bytes;
    uint64_t refund_bytes = small_arrays[device].live_bytes == 0 ? small_arrays[device].charged_bytes : 0;
    small_arrays[device].charged_bytes -= refund_bytes;
    pthread_mutex_unlock(&blocks_mutex);
    refund(device, refund_bytes);
}

result_t charge_managed(int device, uint64_t bytes)
{
    if (!MANAGED_IN_BATCHES)
        return charge(device, block_bytes_of(bytes));
    return counted(device) ? charge_jointly(&managed_memory[device], device, bytes, managed_batch_bytes())
                           : charge(device, bytes);
}

result_t settle_managed(result_t answer, pointer_t *pointer, int device, uint64_t bytes)
{
    if (!MANAGED_IN_BATCHES && block_bytes_of(bytes) == 0)
        return settle_suballocation(answer, pointer, device);
    if (!MANAGED_IN_BATCHES)
        return settle_pointer(answer, pointer, device, block_bytes_of(bytes), NULL);
    if (answer == RESULT_OK)
        return settle_pointer(answer, pointer, device, bytes, &managed_tag);
    if (counted(device))
        refund_managed(device, bytes);
    return answer;
}

uint64_t managed_charged_bytes(int device)
{
    pthread_mutex_lock(&blocks_mutex);
    uint64_t bytes = managed_memory[device].charged_bytes;
    pthread_mutex_unlock(&blocks_mutex);
    return bytes;
}

uint64_t small_arrays_excess_bytes(int device)
{
    pthread_mutex_lock(&blocks_mutex);
    uint64_t bytes = small_arrays[device].charged_bytes - round_up(small_arrays[device].live_bytes, BLOCK_BYTES);
    pthread_mutex_unlock(&blocks_mutex);
    return bytes;
}
