/* Bytes of device memory that the driver keeps for an executable graph. */
#ifndef HETERO_SHARED_GRAPH_SIZE_H
#define HETERO_SHARED_GRAPH_SIZE_H

#include "types.h"

#include <stdint.h>

/* 0: the graph cannot be read, and the driver will refuse it. */
uint64_t graph_size(TYPE(graph) graph);

#endif
