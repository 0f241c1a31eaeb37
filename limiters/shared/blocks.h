/* What the driver takes of a device for memory by pointer and for arrays: whole blocks of 2 MiB, and for managed memory
 * larger batches.
 *
 * An allocation of SUBALLOCATED_BELOW bytes or more has blocks of its own. Smaller ones are sub-allocations: they share
 * blocks, and a block is taken for as long as it has one of them. What differs between APIs is in types.h.
 *
 * SUBALLOCATED_BELOW: 1 MiB for CUDA.
 *
 * CONTEXTS_HAVE_BLOCKS: the first block that a context sub-allocates is part of the context and costs nothing.
 *
 * BLOCKS_ARE_KEPT: the driver may keep a block that has become empty, and frees it when the card is out of memory. The
 * block stays charged until another sub-allocation lies in it, or until the grant needs the memory.
 *
 * MANAGED_IN_BATCHES: managed memory is taken in batches. Otherwise it is charged in full like other memory, for only
 * the kernel knows what of it is on the card.
 *
 * Measured on an NVIDIA H100 (driver 580.159.04, 2026-11-23): 1, 512 and 65536 bytes lie in one block, 1 MiB takes 2
 * MiB, 2 MiB and a byte take 4 MiB. Of forty sub-allocations of 1 MiB less 512 bytes, which took 21 blocks, every
 * second was freed, and all 21 blocks stayed. AMD's own HIP and HSA runtimes 5.2.3 on simulated cards (docs/hip.md)
 * keep some of the empty blocks, up to twice what is in use.
 */
#ifndef HETERO_SHARED_BLOCKS_H
#define HETERO_SHARED_BLOCKS_H

#include "types.h"

#include "../core/table.h"

#include <stdbool.h>

#define BLOCK_BYTES (UINT64_C(2) << 20)

/* Unit in which nvidia-uvm allocates managed memory: on the same card 64 MiB took 128 MiB. */
#define MANAGED_BATCH (UINT64_C(128) << 20)

/* The bytes of the whole blocks that an allocation takes. 0: it is a sub-allocation, whose block follows from its
 * address. */
uint64_t block_bytes_of(uint64_t bytes);

/* After the driver's answer for a sub-allocation: charge its block. If that does not fit, free the sub-allocation and
 * return out of memory. */
result_t settle_suballocation(result_t answer, pointer_t *pointer, int device);

/* The same for a sub-allocation of another kind of entry, with its owner; `undo` frees it. */
result_t settle_suballocation_of(uint32_t kind, pointer_t pointer, int device, void *owner,
                                 result_t (*undo)(pointer_t));

/* Have the driver free the empty blocks that it keeps on a device. Whether it kept any. */
bool blocks_trim(int device);

/* The bytes to charge for an allocation of `bytes` in whole blocks of `block_bytes`. If the grant has room for the
 * bytes but not for the blocks, the rest may lie in the block that is part of the current context, which is then free
 * of sub-allocations. So a grant of 1 MiB can hold 1 MiB. */
uint64_t chargeable_bytes(int device, uint64_t bytes, uint64_t block_bytes);

/* After the driver's answer for an allocation of `block_bytes`, of which `charged_bytes` are charged. */
result_t settle_blocks(result_t answer, const pointer_t *pointer, int device, uint64_t block_bytes,
                       uint64_t charged_bytes);

/* Whether an entry is a sub-allocation. */
bool is_suballocation(const struct entry *entry);

/* A sub-allocation or an allocation was freed: give back its charge. */
void pointer_freed(const struct entry *entry);

/* The HELD_SHARED entry of the memory that other processes get when they open an allocation: all of its block, if it is
 * a sub-allocation. */
struct entry shared_entry_of(const struct entry *allocation);

/* Before an allocation is shared: if its block is part of the context and so not charged, charge it until the context
 * ends. */
result_t charge_shared(const struct entry *allocation);

/* A shared allocation was freed: the charged bytes that it no longer needs. 0: its block stays. */
uint64_t shared_freed_bytes(const struct entry *entry);

/* A block's context ended. */
void block_context_ended(const struct entry *entry);

/* Small arrays have no address that tells their block. A device's small arrays are charged together, by the largest sum
 * of their bytes so far, until the last one is freed: partly empty blocks may still be taken. The charge is made before
 * an array and given back after it. */
result_t charge_small_array(int device, uint64_t bytes);
void refund_small_array(int device, uint64_t bytes);

/* Where BLOCKS_ARE_KEPT, a small array was freed whose block the driver may keep. Its charge stays until the grant
 * needs the memory. Without an address nothing tells whether the next array lies in that block. */
void keep_array_charged(int device, uint64_t bytes);

/* A device's managed memory is charged together, in batches. The first is called before the driver, the second after.
 */
result_t charge_managed(int device, uint64_t bytes);
result_t settle_managed(result_t answer, pointer_t *pointer, int device, uint64_t bytes);

/* The bytes that are charged for managed memory. */
uint64_t managed_charged_bytes(int device);

/* The bytes that are charged for small arrays beyond the blocks that they need at least. */
uint64_t small_arrays_excess_bytes(int device);

void blocks_after_fork(void);

#endif
