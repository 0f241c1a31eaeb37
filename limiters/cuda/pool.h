/* The pool that a device has for its graphs. */
#ifndef HETERO_CUDA_POOL_H
#define HETERO_CUDA_POOL_H

#include "abi.h"

/* What a graph takes of it, and its end. What the graph allocated and did not free outlives it. */
CUresult charge_graphs(int device, uint64_t bytes);
void refund_graphs(int device, uint64_t bytes);

#endif
