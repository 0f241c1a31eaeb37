/* What the driver takes of a device for memory by pointer and for arrays: whole blocks of 2 MiB, and for managed memory
 * larger batches.
 *
 * Memory from SUBALLOCATED_BELOW on has blocks of its own. Smaller pieces share blocks, and a block is taken for as
 * long as it has one piece. What differs between APIs is in types.h.
 *
 * SUBALLOCATED_BELOW: 1 MiB for CUDA.
 *
 * CONTEXTS_HAVE_BLOCKS: the first block that a context shares out is part of the context and costs nothing.
 *
 * BLOCKS_ARE_KEPT: the driver may keep a block that has become empty, and gives it back when the card has no memory for
 * it. It stays charged until another piece lies in it, or until the grant needs the room.
 *
 * MANAGED_IN_BATCHES: managed memory is taken in batches. Otherwise it is charged in full like other memory, for only
 * the kernel knows what of it is on the card.
 *
 * Measured on an NVIDIA H100 (driver 580.159.04, 2026-11-23): 1, 512 and 65536 bytes in one block, 1 MiB takes 2, 2 MiB
 * and a byte takes 4; of forty pieces of 1 MiB less 512 bytes, which took 21 blocks, every second was freed and all 21
 * stayed. And with AMD's own HIP and HSA runtimes 5.2.3 on simulated cards (docs/hip.md), which keep some of the
 * empty blocks, up to twice what is in use.
 */
#ifndef HETERO_SHARED_BLOCKS_H
#define HETERO_SHARED_BLOCKS_H

#include "types.h"

#include "../core/table.h"

#include <stdbool.h>

#define BLOCK (UINT64_C(2) << 20)

/* What nvidia-uvm takes of a device for managed memory at a time: on the same card 64 MiB of it took 128. */
#define MANAGED_BATCH (UINT64_C(128) << 20)

/* What so many bytes take: whole blocks; 0 for a piece, of which only its address tells. */
uint64_t block_bytes_of(uint64_t bytes);

/* The driver placed a piece, or did not: it is charged by its block; or freed again, refused, and nowhere. */
result_t settle_suballocation(result_t answer, pointer_t *pointer, int device);

/* The same of a piece that is another kind of entry, with its owner; `undo` frees it. */
result_t settle_suballocation_of(uint32_t kind, pointer_t pointer, int device, void *owner,
                                 result_t (*undo)(pointer_t));

/* Have the driver give back the blocks of a device that it keeps. Whether it kept any. */
bool blocks_trim(int device);

/* What is to be charged for `bytes` that take `held`: where the grant has no room for whole blocks but for the bytes,
 * the rest may lie in the block that is part of the current context, in place of pieces. So a grant of 1 MiB can hold
 * 1 MiB. */
uint64_t chargeable_bytes(int device, uint64_t bytes, uint64_t block_bytes);

/* The driver answered to an allocation for which `charged` of `held` are charged. */
result_t settle_blocks(result_t answer, const pointer_t *pointer, int device, uint64_t block_bytes,
                       uint64_t charged_bytes);

/* Whether an entry is a piece. */
bool is_suballocation(const struct entry *entry);

/* A piece or an allocation is freed. */
void pointer_freed(const struct entry *entry);

/* What others get with the memory of an entry: as HELD_SHARED, all of the block that a piece lies in. Before they do, a
 * block that is part of its context is charged, too, until that ends. */
struct entry shared_entry_of(const struct entry *allocation);
result_t charge_shared(const struct entry *allocation);

/* Such an entry is freed: what is to be given back with it; 0: its block stays. */
uint64_t shared_freed_bytes(const struct entry *entry);

/* A block's context ended. */
void block_context_ended(const struct entry *entry);

/* Small arrays have no address. What they take is charged by the most that they ever were together, until the last of
 * a device is gone: blocks that are partly empty may still be taken. Charge before, and give back after. */
result_t charge_small_array(int device, uint64_t bytes);
void refund_small_array(int device, uint64_t bytes);

/* Where BLOCKS_ARE_KEPT, a small array is gone, whose block the driver may keep: what is charged for it stays charged
 * until the grant needs the room. Without an address nothing tells whether the next array lies in that block. */
void keep_array_charged(int device, uint64_t bytes);

/* Managed memory of a device is charged together, in batches: before it is allocated. Then the driver answered. */
result_t charge_managed(int device, uint64_t bytes);
result_t settle_managed(result_t answer, pointer_t *pointer, int device, uint64_t bytes);

/* What is charged for it. */
uint64_t managed_charged_bytes(int device);

/* What is charged for small arrays beyond what they take at least. */
uint64_t small_arrays_excess_bytes(int device);

void blocks_after_fork(void);

#endif
