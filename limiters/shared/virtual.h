/* Blocks of physical memory of the virtual memory management. */
#ifndef HETERO_SHARED_VIRTUAL_H
#define HETERO_SHARED_VIRTUAL_H

#include "types.h"

struct vmm_block;

/* Map and unmap blocks, which live as long as their mappings. */
result_t map_block(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle), unsigned long long),
                   pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                   unsigned long long flags);
result_t unmap_blocks(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes);

/* A new reference to the block of a handle, for one of the next two to drop; NULL: the handle is not known. */
struct vmm_block *block_of_handle(TYPE(memGenericAllocationHandle) handle);

/* Drop a reference. The second reads the card's use first, to tell whether an exported block is freed. */
void drop_reference(struct vmm_block *block);
void drop_reference_asked(struct vmm_block *block);

/* A sparse array was freed: drop its references to the blocks of its tiles (tiles.c). */
void tiles_unmapped(const void *array);

void virtual_after_fork(void);

#endif
