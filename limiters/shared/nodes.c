/* What a program puts into graphs, into the bodies of conditions, and into executable graphs later. A kernel may be
 * launched any time after, so that its local memory is charged when it is put there; one that is captured is a launch.
 */
#include "arguments.h"
#include "bodies.h"
#include "graph.h"
#include "graph_nodes.h"
#include "local.h"

#include "../core/fault.h"

#define PUT(kernel, call)                                                                                              \
    return FAULT(local_memory_in_graphs_uncharged) || local_in_graph(kernel) ? call : ERROR(OUT_OF_MEMORY)

static const void *kernel_of(const NAMED(KERNEL_NODE_PARAMS) *params)
{
    return params == NULL ? NULL : params->func != NULL ? (const void *)params->func : (const void *)params->kern;
}

static const void *kernel_of_v1(const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    return params == NULL ? NULL : params->func;
}

static bool same(const void *one, const void *other, size_t bytes)
{
    return memcmp(one, other, bytes) == 0;
}

/* With the driver's answers in it. Of most nodes there are none: they may lie in memory that is only read. */
#define PUT_ANY(call)                                                                                                  \
    TYPE(graphNodeParams) *theirs = params;                                                                            \
    AS_IT_IS(params);                                                                                                  \
    result_t answer = local_in_graph(kernel_of_any(params)) ? call : ERROR(OUT_OF_MEMORY);                             \
    if (answer == RESULT_OK && params != NULL && !same(theirs, params, sizeof *params))                                \
        *theirs = *params;                                                                                             \
    return answer

static const void *kernel_of_any(const TYPE(graphNodeParams) *params)
{
    return params == NULL || params->type != VALUE(GRAPH_NODE_TYPE_KERNEL) ? NULL : kernel_of(&params->kernel);
}

result_t add_kernel(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *, size_t,
                                     const NAMED(KERNEL_NODE_PARAMS) *),
                    TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *needs, size_t count,
                    const NAMED(KERNEL_NODE_PARAMS) *params)
{
    AS_IT_IS(params);
    PUT(kernel_of(params), real(node, graph, needs, count, params));
}

result_t add_kernel_v1(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *, size_t,
                                        const NAMED(KERNEL_NODE_PARAMS_v1) *),
                       TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *needs, size_t count,
                       const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    AS_IT_IS(params);
    PUT(kernel_of_v1(params), real(node, graph, needs, count, params));
}

result_t add_node(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *, size_t,
                                   TYPE(graphNodeParams) *),
                  TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *needs, size_t count,
                  TYPE(graphNodeParams) *params)
{
    PUT_ANY(real(node, graph, needs, count, params));
}

result_t add_node_with(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *,
                                        const TYPE(graphEdgeData) *, size_t, TYPE(graphNodeParams) *),
                       TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *needs,
                       const TYPE(graphEdgeData) *edges, size_t count, TYPE(graphNodeParams) *params)
{
    PUT_ANY(real(node, graph, needs, edges, count, params));
}

result_t set_kernel(result_t (*real)(TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS) *), TYPE(graphNode) node,
                    const NAMED(KERNEL_NODE_PARAMS) *params)
{
    AS_IT_IS(params);
    PUT(kernel_of(params), real(node, params));
}

result_t set_kernel_v1(result_t (*real)(TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS_v1) *), TYPE(graphNode) node,
                       const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    AS_IT_IS(params);
    PUT(kernel_of_v1(params), real(node, params));
}

result_t set_node(result_t (*real)(TYPE(graphNode), TYPE(graphNodeParams) *), TYPE(graphNode) node,
                  TYPE(graphNodeParams) *params)
{
    PUT_ANY(real(node, params));
}

result_t set_exec_kernel(result_t (*real)(TYPE(graphExec), TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS) *),
                         TYPE(graphExec) exec, TYPE(graphNode) node, const NAMED(KERNEL_NODE_PARAMS) *params)
{
    AS_IT_IS(params);
    PUT(kernel_of(params), real(exec, node, params));
}

result_t set_exec_kernel_v1(result_t (*real)(TYPE(graphExec), TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS_v1) *),
                            TYPE(graphExec) exec, TYPE(graphNode) node, const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    AS_IT_IS(params);
    PUT(kernel_of_v1(params), real(exec, node, params));
}

result_t set_exec_child(result_t (*real)(TYPE(graphExec), TYPE(graphNode), TYPE(graph)), TYPE(graphExec) exec,
                        TYPE(graphNode) node, TYPE(graph) child)
{
    result_t refused = nodes_brought_up(exec, child);
    return refused == RESULT_OK ? graph_brought_up(real(exec, node, child), exec, child, false) : refused;
}

result_t set_exec_node(result_t (*real)(TYPE(graphExec), TYPE(graphNode), TYPE(graphNodeParams) *),
                       TYPE(graphExec) exec, TYPE(graphNode) node, TYPE(graphNodeParams) *params)
{
    AS_IT_IS(params);
    if (params != NULL && params->type == VALUE(GRAPH_NODE_TYPE_GRAPH))
        return graph_brought_up(real(exec, node, params), exec, params->graph.graph, false);
    PUT(kernel_of_any(params), real(exec, node, params));
}

result_t update_exec(result_t (*real)(TYPE(graphExec), TYPE(graph), TYPE(graphExecUpdateResultInfo) *),
                     TYPE(graphExec) exec, TYPE(graph) graph, TYPE(graphExecUpdateResultInfo) *info)
{
    result_t refused = nodes_brought_up(exec, graph);
    return refused == RESULT_OK ? graph_brought_up(real(exec, graph, info), exec, graph, true) : refused;
}

result_t update_exec_v1(result_t (*real)(TYPE(graphExec), TYPE(graph), TYPE(graphNode) *,
                                         TYPE(graphExecUpdateResult) *),
                        TYPE(graphExec) exec, TYPE(graph) graph, TYPE(graphNode) *error,
                        TYPE(graphExecUpdateResult) *result)
{
    result_t refused = nodes_brought_up(exec, graph);
    return refused == RESULT_OK ? graph_brought_up(real(exec, graph, error, result), exec, graph, true) : refused;
}
