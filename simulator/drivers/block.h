/* Blocks of a card's memory, as the fake driver gives them out. */
#ifndef HETERO_FAKE_BLOCK_H
#define HETERO_FAKE_BLOCK_H

#include "engine.h"

#include <stddef.h>

struct context;

#define MIB   (UINT64_C(1) << 20)
#define BLOCK (2 * MIB)     /* unit of a card's allocations, and alignment of its addresses */
#define GRAIN UINT64_C(512) /* bytes of a slot; small pieces, pitches and managed memory are rounded up to it */

struct block { /* of a card's memory: BLOCK for small pieces, or a large one's own */
    struct context *context;
    uintptr_t start;
    uint64_t size_bytes, file_offset; /* offset: in this process's device memory file */
    unsigned live_slots;              /* slots in use; a large block has one */
    bool is_shared;                   /* an IPC handle names it */
    struct engine_share share_handle;
    bool is_taken[BLOCK / GRAIN];
    struct block *next; /* in context->blocks, the small ones */
};

struct piece { /* the part of a block that an allocation has */
    struct block *block;
    unsigned first_slot, slot_count; /* slots of the block */
    uintptr_t start;
    size_t length_bytes;
};

void *address_room(size_t size_bytes, uint64_t grain, void *address_hint); /* addresses alone; NULL: none are left */
bool piece_take(struct context *context, uint64_t size_bytes, bool is_small, struct piece *piece);
void piece_give(const struct piece *piece);
bool block_share(struct block *block); /* for an IPC handle; other processes may have the block open when it is freed */
void blocks_free(struct context *context); /* frees the blocks of a context without pieces */

#endif
