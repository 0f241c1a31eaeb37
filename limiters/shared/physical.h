/* Blocks of physical memory: the table of their handles, and when a block's charge is given back. A block lives while a
 * handle, a mapping or a sparse array refers to it. */
#ifndef HETERO_SHARED_PHYSICAL_H
#define HETERO_SHARED_PHYSICAL_H

#include "card_use.h"

#include <stdatomic.h>

struct vmm_block {
    int device;
    uint64_t bytes;                   /* charged */
    _Atomic unsigned reference_count; /* from handles, each of which has several, mappings and sparse arrays */
    _Atomic bool is_exported;
    bool is_imported; /* another process created it and is charged for it */
};

/* The first entry of a handle, with one of its block's references. */
void add_handle(uint64_t handle, struct vmm_block *block);

/* Add `change` to the references that a handle stands for. With none left its entry is removed. NULL: it has no entry.
 */
struct vmm_block *change_handle_count(uint64_t handle, int change);

/* A new reference to the block of a handle, to be dropped; NULL: the handle is not known. */
struct vmm_block *block_of_handle(uint64_t handle);

/* The card's use before the driver is asked to free an exported block; not read for other blocks. */
struct card_use use_before_drop(const struct vmm_block *block);

/* Drop a reference, with the card's use before the driver's call. Returns the bytes that stay charged, because the card
 * is not seen to have them back. */
uint64_t drop_after_use(struct vmm_block *block, struct card_use use_before);

/* The same where the driver freed nothing, and where the card's use is read now. */
void drop_reference(struct vmm_block *block);
void drop_reference_asked(struct vmm_block *block);

/* Other processes may have the block from now on. One that was imported is not noted. */
void note_exported(struct vmm_block *block);

void physical_after_fork(void);

#endif
