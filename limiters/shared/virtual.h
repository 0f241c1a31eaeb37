/* Mappings of blocks of physical memory (physical.h). */
#ifndef HETERO_SHARED_VIRTUAL_H
#define HETERO_SHARED_VIRTUAL_H

#include "types.h"
#include "physical.h"

/* Map and unmap blocks, which live as long as their mappings. */
result_t map_block(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle), unsigned long long),
                   pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                   unsigned long long flags);
result_t unmap_blocks(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes);

/* A sparse array was freed: drop its references to the blocks of its tiles (tiles.c). */
void tiles_unmapped(const void *array);

void virtual_after_fork(void);

#endif
