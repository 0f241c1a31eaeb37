/* Device memory that the driver keeps for the nodes of executable graphs. No driver call reports it. */
#ifndef HETERO_SHARED_GRAPH_NODES_H
#define HETERO_SHARED_GRAPH_NODES_H

#include "types.h"

#include <stdint.h>

/* Charge the nodes of an executable graph to the current context, before the driver makes it: `*bytes`. Out of memory:
 * they do not fit, and nothing is charged. */
result_t nodes_charge(TYPE(graph) graph, uint64_t *bytes);

/* The same for nodes that were added since. */
result_t nodes_charge_more(TYPE(graph) graph, uint64_t *bytes);

/* After the driver's answer: keep the charge, or give it back. */
void nodes_made(result_t answer, const TYPE(graphExec) *exec, uint64_t bytes);

/* Before an executable graph is updated to another graph's nodes. */
result_t nodes_updated(TYPE(graphExec) exec, TYPE(graph) graph);

/* The executable graph was destroyed. */
void nodes_destroyed(TYPE(graphExec) exec);

void nodes_after_fork(void);

#endif
