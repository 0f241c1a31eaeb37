/* Nodes of executable graphs are not charged, for an API for which their memory is not measured. */
#include "graph_nodes.h"

result_t nodes_charge(TYPE(graph) graph, uint64_t *bytes)
{
    (void)graph;
    *bytes = 0;
    return RESULT_OK;
}

result_t nodes_charge_more(TYPE(graph) graph, uint64_t *bytes)
{
    (void)graph, (void)bytes;
    return RESULT_OK;
}

void nodes_made(result_t answer, const TYPE(graphExec) *exec, uint64_t bytes)
{
    (void)answer, (void)exec, (void)bytes;
}

result_t nodes_updated(TYPE(graphExec) exec, TYPE(graph) graph)
{
    (void)exec, (void)graph;
    return RESULT_OK;
}

void nodes_destroyed(TYPE(graphExec) exec)
{
    (void)exec;
}

void nodes_after_fork(void)
{
}
