/* Blocks of a card's memory, and the pieces they are given out in.
 *
 * The card gives memory in blocks of 2 MiB. Pieces of less than 1 MiB share blocks, each context its own; larger ones
 * have whole blocks to themselves. A block is the card's while it has a piece; the first small one of a context stays
 * with it. Measured on an H100, driver 580.
 */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SLOTS (unsigned)(BLOCK / GRAIN)

void *address_room(size_t size, uint64_t grain, void *wanted)
{
    /* Room to align in, given back on both sides. */
    char *room = mmap(wanted, size + grain, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    uintptr_t start = round_up((uintptr_t)room, grain), end = start + size, limit = (uintptr_t)room + size + grain;
    if (start > (uintptr_t)room)
        munmap(room, start - (uintptr_t)room);
    if (limit > end)
        munmap((void *)end, limit - end);
    return (void *)start;
}

static void block_free(struct block *block)
{
    struct account *account = block->context->device->account;
    munmap((void *)block->start, block->size);
    if (!block->shared)
        engine_release(account, block->size);
    if (!block->shared || !engine_unshare(account, block->share.number))
        memory_discard(block->offset, block->size);
    free(block);
}

static struct block *block_new(struct context *context, uint64_t size)
{
    if (!engine_charge(context->device->account, size))
        return NULL;
    struct block *block = calloc(1, sizeof *block);
    *block = (struct block){.context = context, .size = size};
    void *start = address_room(size, BLOCK, NULL);
    block->start = (uintptr_t)start;
    if (start && memory_map(size, &block->offset, start, &start))
        return block;
    engine_release(context->device->account, size);
    free(block);
    return NULL;
}

/* The first of so many free slots in a row; SLOTS: there are none. */
static unsigned free_slots(const struct block *block, unsigned count)
{
    if (SLOTS - block->live < count)
        return SLOTS;
    for (unsigned at = 0, run = 0; at < SLOTS; at++) {
        run = block->taken[at] ? 0 : run + 1;
        if (run == count)
            return at + 1 - count;
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

bool piece_take(struct context *context, uint64_t size, bool small, struct piece *piece)
{
    *piece = (struct piece){.count = small ? (unsigned)(round_up(size, GRAIN) / GRAIN) : 1};
    struct block *block = small ? block_with(context, piece->count) : block_new(context, round_up(size, BLOCK));
    if (!block)
        return false;
    piece->block = block;
    piece->first = small ? free_slots(block, piece->count) : 0;
    piece->start = block->start + piece->first * GRAIN;
    piece->length = small ? piece->count * GRAIN : block->size;
    block->live += piece->count;
    for (unsigned i = 0; small && i < piece->count; i++)
        block->taken[piece->first + i] = true;
    return true;
}

void piece_give(const struct piece *piece)
{
    struct block *block = piece->block, **link = &block->context->blocks;
    for (unsigned i = 0; i < piece->count; i++)
        block->taken[piece->first + i] = false;
    block->live -= piece->count;
    if (block->live || block == *link) /* the first small one */
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
    block->shared = block->shared || engine_share(account, block->size, block->size, true, &block->share);
    return block->shared;
}

void blocks_free(struct context *context)
{
    if (context->blocks)
        block_free(context->blocks);
    context->blocks = NULL;
}
