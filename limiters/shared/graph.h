/* Executable graphs that take memory (graph.c). */
#ifndef HETERO_SHARED_GRAPH_H
#define HETERO_SHARED_GRAPH_H

#include "types.h"

#include <stdbool.h>

/* The driver was asked to give an executable graph the nodes of another, in all or in one child of it: what they take
 * is charged when it is launched. Returns the driver's answer. */
result_t graph_updated(result_t answer, TYPE(graphExec) exec, TYPE(graph) graph, bool is_whole_graph);

#endif
