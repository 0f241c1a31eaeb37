/* What the driver keeps of a graph that is made executable, in bytes. */
#ifndef HETERO_SHARED_GRAPH_SIZE_H
#define HETERO_SHARED_GRAPH_SIZE_H

#include "types.h"

#include <stdint.h>

/* 0 where it cannot be read: then the driver will say what is wrong with it. */
uint64_t graph_size(TYPE(graph) graph);

#endif
