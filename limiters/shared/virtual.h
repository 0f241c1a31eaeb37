/* Blocks of physical memory. */
#ifndef HETERO_SHARED_VIRTUAL_H
#define HETERO_SHARED_VIRTUAL_H

#include "types.h"

struct vmm_block;

/* Map a block, which lives as long as its mappings do. */
result_t map_block(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle), unsigned long long),
                   pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                   unsigned long long flags);
result_t unmap_blocks(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes);

/* One reference more to the block of a handle, which is given back by either of the next two; NULL: not one of ours. */
struct vmm_block *block_of_handle(TYPE(memGenericAllocationHandle) handle);

/* One reference is gone; the second has the card asked whether it has an exported block again. */
void drop_reference(struct vmm_block *block);
void drop_reference_asked(struct vmm_block *block);

/* A sparse array is gone, and with it the tiles of blocks that were mapped into it (tiles.c). */
void tiles_unmapped(const void *array);

void virtual_after_fork(void);

#endif
