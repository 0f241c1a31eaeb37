/* What the driver keeps on a device for the nodes of executable graphs, which no call tells. */
#ifndef HETERO_SHARED_GRAPH_NODES_H
#define HETERO_SHARED_GRAPH_NODES_H

#include "types.h"

#include <stdint.h>

/* Charge what an executable graph of this graph's nodes takes, before the driver makes it: `*bytes` of the current
 * context. Out of memory: it does not fit, and nothing is charged. */
result_t nodes_charge(TYPE(graph) graph, uint64_t *bytes);

/* Nodes were added since. */
result_t nodes_charge_more(TYPE(graph) graph, uint64_t *bytes);

/* The driver made it, or did not. */
void nodes_made(result_t answer, const TYPE(graphExec) *exec, uint64_t bytes);

/* It is to have the nodes of another graph. */
result_t nodes_updated(TYPE(graphExec) exec, TYPE(graph) graph);

/* It was destroyed. */
void nodes_destroyed(TYPE(graphExec) exec);

void nodes_after_fork(void);

#endif
