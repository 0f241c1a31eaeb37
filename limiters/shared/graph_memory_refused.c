/* Refuses allocation nodes of graphs, for an API for which their memory is not charged. An allocation in a capture
 * would be such a node (pools_allocation_charged.c). */
#include "bodies.h"
#include "capturing.h"
#include "counted.h"

#include "../core/tenant.h"

static bool is_refused(void)
{
    bool is_limited = tenancy() == TENANCY_REFUSED;
    for (int device = 0; !is_limited && device < (int)tenant_grant->device_count; device++)
        is_limited = counted(device);
    return is_limited;
}

result_t add_memory_node(result_t (*real)(void *, TYPE(graph), const void *, size_t, void *), void *node,
                         TYPE(graph) graph, const void *dependencies, size_t dependency_count, void *params)
{
    return is_refused() ? ERROR(NOT_SUPPORTED) : real(node, graph, dependencies, dependency_count, params);
}

result_t add_node(result_t (*real)(void *, TYPE(graph), const void *, size_t, NAMED(GRAPH_NODE_PARAMS) *), void *node,
                  TYPE(graph) graph, const void *dependencies, size_t dependency_count,
                  NAMED(GRAPH_NODE_PARAMS) *params)
{
    bool is_memory_node = params != NULL && params->type == VALUE(GRAPH_NODE_TYPE_MEM_ALLOC);
    return is_memory_node && is_refused() ? ERROR(NOT_SUPPORTED)
                                          : real(node, graph, dependencies, dependency_count, params);
}

void graphs_after_fork(void)
{
}
