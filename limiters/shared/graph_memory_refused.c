/* Memory that graphs take when they are launched, of an API for which that is not charged: no graph of a program under
 * a limit takes any. What a capture asks of a pool would be such memory (pools_allocation_charged.c). */
#include "bodies.h"
#include "capturing.h"
#include "counted.h"

#include "../core/tenant.h"

static bool refused(void)
{
    bool any = tenancy() == TENANCY_REFUSED;
    for (int device = 0; !any && device < (int)tenant_grant->device_count; device++)
        any = counted(device);
    return any;
}

result_t add_memory_node(result_t (*real)(void *, TYPE(graph), const void *, size_t, void *), void *node,
                         TYPE(graph) graph, const void *needs, size_t count, void *params)
{
    return refused() ? ERROR(NOT_SUPPORTED) : real(node, graph, needs, count, params);
}

result_t add_node(result_t (*real)(void *, TYPE(graph), const void *, size_t, NAMED(GRAPH_NODE_PARAMS) *), void *node,
                  TYPE(graph) graph, const void *needs, size_t count, NAMED(GRAPH_NODE_PARAMS) *params)
{
    bool memory = params != NULL && params->type == VALUE(GRAPH_NODE_TYPE_MEM_ALLOC);
    return memory && refused() ? ERROR(NOT_SUPPORTED) : real(node, graph, needs, count, params);
}

void graphs_after_fork(void)
{
}
