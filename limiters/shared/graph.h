/* Executable graphs that allocate memory (graph.c). */
#ifndef HETERO_SHARED_GRAPH_H
#define HETERO_SHARED_GRAPH_H

#include "types.h"

#include <stdbool.h>

/* After a driver call that updates an executable graph to another graph's nodes: all of it, or only one child graph.
 * Their memory is charged at the next launch. Returns the driver's answer. */
result_t graph_updated(result_t answer, TYPE(graphExec) exec, TYPE(graph) graph, bool is_whole_graph);

#endif
