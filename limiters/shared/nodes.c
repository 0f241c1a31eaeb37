/* Nodes that a program adds to graphs and to bodies of conditional nodes, or changes in executable graphs. A kernel
 * node may be launched at any later time, so its local memory is charged here. A captured kernel counts as a launch.
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

static bool is_same(const void *left, const void *right, size_t bytes)
{
    return memcmp(left, right, bytes) == 0;
}

/* The driver writes outputs into the parameters of some nodes, which are copied back only if they changed: other
 * parameters may lie in read-only memory. */
#define PUT_ANY(call)                                                                                                  \
    TYPE(graphNodeParams) *program_params = params;                                                                    \
    COPY_ARGUMENT(params);                                                                                             \
    result_t answer = local_in_graph(kernel_of_any(params)) ? call : ERROR(OUT_OF_MEMORY);                             \
    if (answer == RESULT_OK && params != NULL && !is_same(program_params, params, sizeof *params))                     \
        *program_params = *params;                                                                                     \
    return answer

static const void *kernel_of_any(const TYPE(graphNodeParams) *params)
{
    return params == NULL || params->type != VALUE(GRAPH_NODE_TYPE_KERNEL) ? NULL : kernel_of(&params->kernel);
}

result_t add_kernel(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *, size_t,
                                     const NAMED(KERNEL_NODE_PARAMS) *),
                    TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *dependencies,
                    size_t dependency_count, const NAMED(KERNEL_NODE_PARAMS) *params)
{
    COPY_ARGUMENT(params);
    PUT(kernel_of(params), real(node, graph, dependencies, dependency_count, params));
}

result_t add_kernel_v1(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *, size_t,
                                        const NAMED(KERNEL_NODE_PARAMS_v1) *),
                       TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *dependencies,
                       size_t dependency_count, const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    COPY_ARGUMENT(params);
    PUT(kernel_of_v1(params), real(node, graph, dependencies, dependency_count, params));
}

result_t add_node(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *, size_t,
                                   TYPE(graphNodeParams) *),
                  TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *dependencies,
                  size_t dependency_count, TYPE(graphNodeParams) *params)
{
    PUT_ANY(real(node, graph, dependencies, dependency_count, params));
}

result_t add_node_with(result_t (*real)(TYPE(graphNode) *, TYPE(graph), const TYPE(graphNode) *,
                                        const TYPE(graphEdgeData) *, size_t, TYPE(graphNodeParams) *),
                       TYPE(graphNode) *node, TYPE(graph) graph, const TYPE(graphNode) *dependencies,
                       const TYPE(graphEdgeData) *edges, size_t dependency_count, TYPE(graphNodeParams) *params)
{
    PUT_ANY(real(node, graph, dependencies, edges, dependency_count, params));
}

result_t set_kernel(result_t (*real)(TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS) *), TYPE(graphNode) node,
                    const NAMED(KERNEL_NODE_PARAMS) *params)
{
    COPY_ARGUMENT(params);
    PUT(kernel_of(params), real(node, params));
}

result_t set_kernel_v1(result_t (*real)(TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS_v1) *), TYPE(graphNode) node,
                       const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    COPY_ARGUMENT(params);
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
    COPY_ARGUMENT(params);
    PUT(kernel_of(params), real(exec, node, params));
}

result_t set_exec_kernel_v1(result_t (*real)(TYPE(graphExec), TYPE(graphNode), const NAMED(KERNEL_NODE_PARAMS_v1) *),
                            TYPE(graphExec) exec, TYPE(graphNode) node, const NAMED(KERNEL_NODE_PARAMS_v1) *params)
{
    COPY_ARGUMENT(params);
    PUT(kernel_of_v1(params), real(exec, node, params));
}

result_t set_exec_child(result_t (*real)(TYPE(graphExec), TYPE(graphNode), TYPE(graph)), TYPE(graphExec) exec,
                        TYPE(graphNode) node, TYPE(graph) child)
{
    result_t charge_result = nodes_updated(exec, child);
    return charge_result == RESULT_OK ? graph_updated(real(exec, node, child), exec, child, false) : charge_result;
}

result_t set_exec_node(result_t (*real)(TYPE(graphExec), TYPE(graphNode), TYPE(graphNodeParams) *),
                       TYPE(graphExec) exec, TYPE(graphNode) node, TYPE(graphNodeParams) *params)
{
    COPY_ARGUMENT(params);
    if (params != NULL && params->type == VALUE(GRAPH_NODE_TYPE_GRAPH))
        return graph_updated(real(exec, node, params), exec, params->graph.graph, false);
    PUT(kernel_of_any(params), real(exec, node, params));
}

result_t update_exec(result_t (*real)(TYPE(graphExec), TYPE(graph), TYPE(graphExecUpdateResultInfo) *),
                     TYPE(graphExec) exec, TYPE(graph) graph, TYPE(graphExecUpdateResultInfo) *info)
{
    result_t charge_result = nodes_updated(exec, graph);
    return charge_result == RESULT_OK ? graph_updated(real(exec, graph, info), exec, graph, true) : charge_result;
}

result_t update_exec_v1(result_t (*real)(TYPE(graphExec), TYPE(graph), TYPE(graphNode) *,
                                         TYPE(graphExecUpdateResult) *),
                        TYPE(graphExec) exec, TYPE(graph) graph, TYPE(graphNode) *error_node,
                        TYPE(graphExecUpdateResult) *update_result)
{
    result_t charge_result = nodes_updated(exec, graph);
    return charge_result == RESULT_OK ? graph_updated(real(exec, graph, error_node, update_result), exec, graph, true)
                                      : charge_result;
}
