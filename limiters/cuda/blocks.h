/* What the driver takes of a device for memory by pointer and for arrays: whole blocks of 2 MiB.
 *
 * Memory from 1 MiB on has blocks of its own. Smaller pieces share blocks, and a block is taken for as long as it has
 * one piece. The first block that a context shares out is part of the context and costs nothing. Measured on an NVIDIA
 * H100 (driver 580.159.04, 2026-11-23): 1, 512 and 65536 bytes in one block, 1 MiB takes 2, 2 MiB and a byte takes 4;
 * of forty pieces of 1 MiB less 512 bytes, which took 21 blocks, every second was freed and all 21 stayed.
 */
#ifndef HETERO_CUDA_BLOCKS_H
#define HETERO_CUDA_BLOCKS_H

#include "abi.h"

#include "../core/table.h"

#include <stdbool.h>

#define BLOCK       (UINT64_C(2) << 20)
#define PIECE_BELOW (UINT64_C(1) << 20)

/* What so many bytes take: whole blocks; 0 for a piece, of which only its address tells. */
uint64_t blocks_for(uint64_t bytes);

/* The driver placed a piece, or did not: it is charged by its block, or freed again and refused. */
CUresult settle_piece(CUresult answer, const CUdeviceptr *pointer, int device);

/* What is to be charged for `bytes` that take `held`: where the grant has no room for whole blocks but for the bytes,
 * the rest may lie in the block that is part of the current context, in place of pieces. So a grant of 1 MiB can hold
 * 1 MiB. */
uint64_t blocks_charged(int device, uint64_t bytes, uint64_t held);

/* The driver answered to an allocation for which `charged` of `held` are charged. */
CUresult settle_blocks(CUresult answer, const CUdeviceptr *pointer, int device, uint64_t held, uint64_t charged);

/* Whether an entry is a piece. */
bool is_piece(const struct entry *entry);

/* A piece or an allocation is freed. */
void pointer_freed(const struct entry *entry);

/* A block's context ended. */
void block_over(const struct entry *entry);

/* Small arrays have no address. What they take is charged by the most that they ever were together, until the last of
 * a device is gone: blocks that are partly empty may still be taken. Charge before, and give back after. */
CUresult charge_small_array(int device, uint64_t bytes);
void refund_small_array(int device, uint64_t bytes);

void blocks_after_fork(void);

#endif
