/* Blocks of physical memory. */
#ifndef HETERO_CUDA_VIRTUAL_H
#define HETERO_CUDA_VIRTUAL_H

/* A sparse array is gone, and with it the tiles of blocks that were mapped into it. */
void tiles_gone(const void *array);

#endif
