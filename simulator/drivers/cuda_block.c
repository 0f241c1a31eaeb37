/* Blocks of a card's memory, and the pieces that allocations get of them.
 *
 * The card allocates blocks of 2 MiB. Pieces of less than 1 MiB share the blocks of their context; a larger piece has
 * blocks of its own. A block is freed with its last piece, but for the first small one of a context. Measured on an
 * H100, driver 580.
 */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SLOTS (unsigned)(BLOCK / GRAIN)

void *address_room(size_t size_bytes, uint64_t grain, void *address_hint)
{
    /* Space for the alignment, unmapped again on both sides. */
    char *reserved = mmap(address_hint, size_bytes + grain, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                          0);
    if (reserved == MAP_FAILED)
        return NULL;
    uintptr_t start = round_up((uintptr_t)reserved, grain), end = start + size_bytes,
              limit = (uintptr_t)reserved + size_bytes + grain;
    if (start > (uintptr_t)reserved)
        munmap(reserved, start - (uintptr_t)reserved);
    if (limit > end)
        munmap((void *)end, limit - end);
    return (void *)start;
}

static void block_free(struct block *block)
{
    struct account *account = block->context->device->account;
    munmap((void *)block->start, block->size_bytes);
    if (!block->is_shared)
        engine_release(account, block->size_bytes);
    if (!block->is_shared || !engine_unshare(account, block->share_handle.number))
        memory_discard(block->file_offset, block->size_bytes);
    free(block);
}

static struct block *block_new(struct context *context, uint64_t size_bytes)
{
    if (!engine_charge(context->device->account, size_bytes))
        return NULL;
    struct block *block = calloc(1, sizeof *block);
    *block = (struct block){.context = context, .size_bytes = size_bytes};
    void *start = address_room(size_bytes, BLOCK, NULL);
    block->start = (uintptr_t)start;
    if (start && memory_map(size_bytes, &block->file_offset, start, &start))
        return block;
    engine_release(context->device->account, size_bytes);
    free(block);
    return NULL;
}

/* Index of the first of slot_count free slots in a row. SLOTS: there are none. */
static unsigned free_slots(const struct block *block, unsigned slot_count)
{
    if (SLOTS - block->live_slots < slot_count)
        return SLOTS;
    for (unsigned slot = 0, free_run = 0; slot < SLOTS; slot++) {
        free_run = block->is_taken[slot] ? 0 : free_run + 1;
        if (free_run == slot_count)
            return slot + 1 - slot_count;
    }
    return SLOTS;
}

static struct block *block_with(struct context *context, unsigned count)
{
    struct block **link = &context->blocks;
    for (; *link; link = &(*link)->next)
        if (free_slots(*link, count) < SLOTS)
            return *link;
    return *link = block_new(context, BLOCK);
}

bool piece_take(struct context *context, uint64_t size_bytes, bool is_small, struct piece *piece)
{
    *piece = (struct piece){.slot_count = is_small ? (unsigned)(round_up(size_bytes, GRAIN) / GRAIN) : 1};
    struct block *block = is_small ? block_with(context, piece->slot_count)
                                   : block_new(context, round_up(size_bytes, BLOCK));
    if (!block)
        return false;
    piece->block = block;
    piece->first_slot = is_small ? free_slots(block, piece->slot_count) : 0;
    piece->start = block->start + piece->first_slot * GRAIN;
    piece->length_bytes = is_small ? piece->slot_count * GRAIN : block->size_bytes;
    block->live_slots += piece->slot_count;
    for (unsigned slot = 0; is_small && slot < piece->slot_count; slot++)
        block->is_taken[piece->first_slot + slot] = true;
    return true;
}

void piece_give(const struct piece *piece)
{
    struct block *block = piece->block, **link = &block->context->blocks;
    for (unsigned slot = 0; slot < piece->slot_count; slot++)
        block->is_taken[piece->first_slot + slot] = false;
    block->live_slots -= piece->slot_count;
    if (block->live_slots || block == *link) /* the first small one */
        return;
    while (*link && *link != block)
        link = &(*link)->next;
    if (*link)
        *link = block->next;
    block_free(block);
}

bool block_share(struct block *block)
{
    struct account *account = block->context->device->account;
    block->is_shared = block->is_shared ||
                       engine_share(account, block->size_bytes, block->size_bytes, true, &block->share_handle);
    return block->is_shared;
}

void blocks_free(struct context *context)
{
    if (context->blocks)
        block_free(context->blocks);
    context->blocks = NULL;
}
