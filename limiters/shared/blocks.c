/* Pieces of memory, and the blocks that they lie in (blocks.h). */
#include "blocks.h"

#include "charge.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"

#include <pthread.h>

/* Keeps a block's pieces, and the small arrays, in step. Never held across a charge or a call of the driver. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* What is charged together, of each device: the bytes that it is, and the bytes that are charged for it. */
struct together {
    uint64_t live, charged;
};
static struct together arrays[HETERO_MAX_DEVICES], managed[HETERO_MAX_DEVICES];
static uint64_t kept[HETERO_MAX_DEVICES]; /* charged for arrays that are gone, whose blocks the driver may keep */

/* What entries link to: a piece; a block that is charged; one that is charged though it is part of its context; an
 * allocation that has its context's block; managed memory.
 */
static char piece, charged, charged_first, with_context, by_managed;

void blocks_after_fork(void)
{
    counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        arrays[device] = managed[device] = (struct together){0};
        kept[device] = 0;
    }
}

static uint64_t rounded(uint64_t bytes, uint64_t to)
{
    return bytes > UINT64_MAX - to ? UINT64_MAX : (bytes + to - 1) / to * to;
}

uint64_t blocks_for(uint64_t bytes)
{
    if (bytes < PIECE_BELOW)
        return 0;
    return FAULT_VALUE(sizes_unrounded, rounded(bytes, BLOCK), bytes);
}

bool is_piece(const struct entry *entry)
{
    return entry->link == &piece;
}

/* With `counting` held: whether the context's block is to be had. One without pieces is forgotten then. */
static bool context_block_idle(context_t context)
{
    struct entry of, block;
    if (!table_get(CONTEXT_BLOCK, (uintptr_t)context, &of))
        return true;
    if (of.bytes == UINT64_MAX || (table_get(HELD_BLOCK, of.bytes, &block) && (block.bytes > 0 || block.link != NULL)))
        return false;
    table_take(CONTEXT_BLOCK, of.key, &of);
    table_take(HELD_BLOCK, of.bytes, &block);
    return true;
}

/* Count a piece in a block that is known. A context's block is known without pieces, too; where another context has a
 * piece at its address, it is no more. */
static bool count_piece(uint64_t block, context_t context)
{
    struct entry entry;
    pthread_mutex_lock(&counting);
    bool known = table_add(HELD_BLOCK, block, 1, &entry);
    if (known && entry.bytes == 1 && entry.owner != context && entry.link == NULL) {
        table_add(HELD_BLOCK, block, -1, &entry);
        known = !context_block_idle(entry.owner);
    }
    pthread_mutex_unlock(&counting);
    return known;
}

/* A block with its first piece; false, and another thread has counted it: it is known by now. */
static bool remember_block(uint64_t block, int device, context_t context, bool first)
{
    struct entry previous, found,
        entry = {.key = block,
                 .kind = HELD_BLOCK,
                 .device = device,
                 .bytes = 1,
                 .owner = CONTEXTS_HAVE_BLOCKS ? context : NULL,
                 .link = first ? NULL : &charged};
    struct entry of = {.key = (uintptr_t)context, .kind = CONTEXT_BLOCK, .bytes = block, .owner = context};
    pthread_mutex_lock(&counting);
    bool news = !table_get(HELD_BLOCK, block, &found);
    if (news && first)
        news = context_block_idle(context) && table_put(&of, &previous);
    news = news && table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
    return news;
}

static result_t charge_piece(uint64_t block, int device, context_t context)
{
    if (count_piece(block, context) || (CONTEXTS_HAVE_BLOCKS && remember_block(block, device, context, true)))
        return RESULT_OK;
    result_t refused = charge(device, BLOCK);
    if (refused != RESULT_OK || remember_block(block, device, context, false))
        return refused;
    refund(device, BLOCK);
    return count_piece(block, context) ? RESULT_OK : ERROR(OUT_OF_MEMORY);
}

result_t settle_piece_of(uint32_t kind, pointer_t pointer, int device, void *owner, result_t (*undo)(pointer_t))
{
    const struct entry entry = {
        .key = (uintptr_t)pointer, .kind = kind, .device = device, .owner = owner, .link = &piece};
    result_t answer = charge_piece(entry.key / BLOCK, device, context_of_memory());
    if (answer != RESULT_OK)
        undo(pointer);
    else
        keep(&entry);
    return answer;
}

result_t settle_piece(result_t answer, pointer_t *pointer, int device)
{
    if (answer != RESULT_OK || (uintptr_t)*pointer == 0 || !counted(device))
        return answer;
    answer = settle_piece_of(HELD_POINTER, *pointer, device, context_of_memory(), DRIVER(MemFree_v2));
    if (answer != RESULT_OK)
        *pointer = (pointer_t)0;
    return answer;
}

static bool is_empty(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_BLOCK && entry->bytes == 0 && entry->device == *(const int *)device;
}

void array_kept(int device, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    kept[device] += bytes;
    pthread_mutex_unlock(&counting);
}

static uint64_t array_kept_all(int device)
{
    pthread_mutex_lock(&counting);
    uint64_t all = kept[device];
    kept[device] = 0;
    pthread_mutex_unlock(&counting);
    return all;
}

/* It does when the card cannot give it as much as the card has. Blocks that get a piece meanwhile are charged anew,
 * since they were forgotten. One that others may have, too, stays charged. */
/* Scratch that no kernel uses is given back with blocks, as for want of memory (../hsa/scratch.c). */
static bool is_scratch(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_SCRATCH && entry->device == *(const int *)device;
}

bool blocks_trim(int device)
{
    struct entry entry, part;
    uint64_t empty = array_kept_all(device);
    size_t all;
    pointer_t pointer;
    while (BLOCKS_ARE_KEPT && table_take_match(is_empty, &device, &entry))
        empty += table_get(HELD_SHARED, entry.key * BLOCK, &part) ? 0 : BLOCK;
    bool kept = empty > 0 ||
                (BLOCKS_ARE_KEPT && !FAULT(unused_scratch_kept) && table_find(is_scratch, &device, &entry));
    if (kept && DRIVER(DeviceTotalMem_v2)(&all, ordinal_of(device)) == RESULT_OK &&
        DRIVER(MemAlloc_v2)(&pointer, all) == RESULT_OK)
        DRIVER(MemFree_v2)(pointer);
    refund(device, empty);
    return kept;
}

uint64_t blocks_charged(int device, uint64_t bytes, uint64_t held)
{
    context_t context = CONTEXTS_HAVE_BLOCKS && held > 0 && counted(device) ? context_of_memory() : NULL;
    struct entry previous,
        entry = {.key = (uintptr_t)context, .kind = CONTEXT_BLOCK, .bytes = UINT64_MAX, .owner = context};
    if (context == NULL || charge_fits(device, held) || !charge_fits(device, bytes))
        return held;
    pthread_mutex_lock(&counting);
    bool ours = context_block_idle(context) && table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
    return ours ? bytes : held;
}

static uint64_t managed_batch(void)
{
    return FAULT_VALUE(managed_memory_unbatched, MANAGED_BATCH, 1);
}

static void refund_managed(int device, uint64_t bytes)
{
    struct together *of = &managed[device];
    pthread_mutex_lock(&counting);
    of->live -= bytes;
    uint64_t back = of->charged - rounded(of->live, managed_batch());
    of->charged -= back;
    pthread_mutex_unlock(&counting);
    refund(device, back);
}

/* The context has its block again, if an allocation's entry has it. */
static void context_block_freed(const struct entry *entry)
{
    struct entry first;
    if (entry->link == &with_context)
        table_take(CONTEXT_BLOCK, (uintptr_t)entry->owner, &first);
}

result_t settle_blocks(result_t answer, const pointer_t *pointer, int device, uint64_t held, uint64_t charged_)
{
    if (held == charged_)
        return settle_pointer(answer, pointer, device, charged_, NULL);
    if (answer != RESULT_OK)
        context_block_freed(&(struct entry){.link = &with_context, .owner = context_of_memory()});
    return settle_pointer(answer, pointer, device, charged_, &with_context);
}

/* A piece is gone: what is charged for its block, if that goes with it. `kept`: the driver may keep it. */
static uint64_t piece_gone(const struct entry *entry, bool kept)
{
    struct entry block;
    pthread_mutex_lock(&counting);
    bool last = table_add(HELD_BLOCK, entry->key / BLOCK, -1, &block) && block.bytes == 0 && block.link == &charged &&
                !kept;
    last = last && table_take(HELD_BLOCK, block.key, &block); /* its context may end in another thread */
    pthread_mutex_unlock(&counting);
    return last ? BLOCK : 0;
}

void pointer_freed(const struct entry *entry)
{
    if (is_piece(entry)) {
        refund(entry->device, piece_gone(entry, BLOCKS_ARE_KEPT));
    } else if (entry->link == &by_managed) {
        refund_managed(entry->device, entry->bytes);
    } else {
        give_back_bytes(entry);
        context_block_freed(entry);
    }
}

struct entry shared_part(const struct entry *held)
{
    bool in_block = is_piece(held);
    return (struct entry){.kind = HELD_SHARED,
                          .key = in_block ? held->key / BLOCK * BLOCK : held->key,
                          .device = held->device,
                          .bytes = in_block ? BLOCK : held->bytes,
                          .owner = held->owner};
}

uint64_t shared_gone(const struct entry *entry)
{
    if (is_piece(entry))
        return piece_gone(entry, false);
    context_block_freed(entry);
    return entry->bytes;
}

result_t charge_shared(const struct entry *held)
{
    struct entry block, previous;
    uint64_t key = held->key / BLOCK;
    if (!is_piece(held) || !table_get(HELD_BLOCK, key, &block) || block.link != NULL)
        return RESULT_OK;
    result_t refused = charge(held->device, BLOCK);
    if (refused != RESULT_OK)
        return refused;
    pthread_mutex_lock(&counting);
    bool first = table_get(HELD_BLOCK, key, &block) && block.link == NULL;
    block.link = &charged_first;
    if (first)
        table_put(&block, &previous);
    pthread_mutex_unlock(&counting);
    refund(held->device, first ? 0 : BLOCK);
    return RESULT_OK;
}

void block_over(const struct entry *entry)
{
    if (entry->link != NULL)
        refund(entry->device, BLOCK);
}

/* Charge so many bytes more with what is there of their kind, which takes the device in units of `unit`. */
static result_t charge_together(struct together *of, int device, uint64_t bytes, uint64_t unit)
{
    for (uint64_t more = 0;;) {
        pthread_mutex_lock(&counting);
        of->charged += more;
        uint64_t live = bytes > UINT64_MAX - of->live ? UINT64_MAX : of->live + bytes;
        more = live > of->charged ? rounded(live - of->charged, unit) : 0;
        of->live += more == 0 ? bytes : 0;
        pthread_mutex_unlock(&counting);
        result_t refused = charge(device, more);
        if (more == 0 || refused != RESULT_OK)
            return refused;
    }
}

result_t charge_small_array(int device, uint64_t bytes)
{
    return charge_together(&arrays[device], device, bytes, BLOCK);
}

void refund_small_array(int device, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    arrays[device].live -= bytes;
    uint64_t back = arrays[device].live == 0 ? arrays[device].charged : 0;
    arrays[device].charged -= back;
    pthread_mutex_unlock(&counting);
    refund(device, back);
}

result_t charge_managed(int device, uint64_t bytes)
{
    if (!MANAGED_IN_BATCHES)
        return charge(device, blocks_for(bytes));
    return counted(device) ? charge_together(&managed[device], device, bytes, managed_batch()) : charge(device, bytes);
}

result_t settle_managed(result_t answer, pointer_t *pointer, int device, uint64_t bytes)
{
    if (!MANAGED_IN_BATCHES && blocks_for(bytes) == 0)
        return settle_piece(answer, pointer, device);
    if (!MANAGED_IN_BATCHES)
        return settle_pointer(answer, pointer, device, blocks_for(bytes), NULL);
    if (answer == RESULT_OK)
        return settle_pointer(answer, pointer, device, bytes, &by_managed);
    if (counted(device))
        refund_managed(device, bytes);
    return answer;
}

uint64_t managed_charged(int device)
{
    pthread_mutex_lock(&counting);
    uint64_t bytes = managed[device].charged;
    pthread_mutex_unlock(&counting);
    return bytes;
}

uint64_t small_arrays_beyond(int device)
{
    pthread_mutex_lock(&counting);
    uint64_t bytes = arrays[device].charged - rounded(arrays[device].live, BLOCK);
    pthread_mutex_unlock(&counting);
    return bytes;
}
