/* Executable graphs: instantiated, updated and launched. */
#include "driver.h"

struct exec {
    struct object object;
    struct graph *graph; /* a copy, its own */
    unsigned long long flags;
    struct context *context; /* that it was made in, and that has its nodes; NULL: none, or that ended */
    uint64_t node_bytes;
};

void execs_leave(const struct context *context)
{
    for (struct exec *exec = NULL; (exec = object_next(exec, OBJECT_EXEC));)
        if (exec->context == context)
            exec->context = NULL;
    engine_release(context->device->account, context->exec_charged_bytes);
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags)
{
    WITH_GRAPH(graph, graph_handle);
    if (!handle || flags & ~0xfULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct context *context = current_context();
    uint64_t bytes = 0;
    if (context)
        CHECK(nodes_take(context, graph, &bytes));
    struct exec *exec = object_new(OBJECT_EXEC);
    exec->context = context;
    exec->node_bytes = bytes;
    exec->graph = graph_copy(graph, true);
    exec->flags = flags;
    *handle = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *handle, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    if (error)
        *error = NULL;
    if (log && size)
        *log = '\0';
    return instantiate(handle, graph, 0);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *handle, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    return cuGraphInstantiate(handle, graph, error, log, size);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph, unsigned long long flags)
{
    return instantiate(handle, graph, flags);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *handle, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    CUresult result = instantiate(handle, graph, params->flags);
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

#define WITH_EXEC(name, handle)                                                                                        \
    LOCKED;                                                                                                            \
    struct exec *name = object_find(handle, OBJECT_EXEC);                                                              \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec handle, uint64_t *flags)
{
    WITH_EXEC(exec, handle);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    WITH_EXEC(exec, handle);
    if (exec->context)
        exec->context->exec_used_bytes -= exec->node_bytes;
    graph_free(exec->graph);
    object_free(exec);
    return CUDA_SUCCESS;
}

static CUgraphExecUpdateResult compare(const struct graph *old_graph, const struct graph *new_graph);

static CUgraphExecUpdateResult compare_nodes(const struct work *old_work, const struct work *new_work)
{
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (old_work->type != new_work->type)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (old_work->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return compare(old_work->graph, new_work->graph);
    if (old_work->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return result;
    if (old_work->branch.type != new_work->branch.type || old_work->branch.count != new_work->branch.count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    for (unsigned i = 0; i < old_work->branch.count && !result; i++)
        result = compare(old_work->branch.bodies[i], new_work->branch.bodies[i]);
    return result;
}

/* Whether an executable graph can be updated from a graph: they differ in the parameters of nodes alone. */
static CUgraphExecUpdateResult compare(const struct graph *old_graph, const struct graph *new_graph)
{
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    const struct node *old_node = old_graph->first, *new_node = new_graph->first;
    for (; old_node && new_node && !result; old_node = old_node->next_in_graph, new_node = new_node->next_in_graph)
        result = compare_nodes(&old_node->work, &new_node->work);
    return !result && (old_node || new_node) ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED : result;
}

/* The nodes of an executable graph are named by the nodes they were instantiated from. */
static void keep_origins(struct graph *new_graph, const struct graph *old_graph)
{
    struct node *new_node = new_graph->first;
    for (const struct node *old_node = old_graph->first; old_node;
         old_node = old_node->next_in_graph, new_node = new_node->next_in_graph) {
        new_node->origin = old_node->origin;
        if (new_node->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
            keep_origins(new_node->work.graph, old_node->work.graph);
        for (unsigned i = 0; new_node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && i < new_node->work.branch.count;
             i++)
            keep_origins(new_node->work.branch.bodies[i], old_node->work.branch.bodies[i]);
    }
}

static void take_over(struct graph **graph, const struct graph *new_graph)
{
    struct graph *old_graph = *graph;
    *graph = graph_copy(new_graph, true);
    keep_origins(*graph, old_graph);
    graph_free(old_graph);
}

static struct node *made_of(const struct graph *graph, const void *origin)
{
    struct node *match = NULL;
    for (struct node *node = graph->first; node && !match; node = node->next_in_graph) {
        if (node->origin == origin)
            return node;
        if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
            match = made_of(node->work.graph, origin);
        for (unsigned i = 0; node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && i < node->work.branch.count; i++)
            match = match ? match : made_of(node->work.branch.bodies[i], origin);
    }
    return match;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node_handle,
                                                  const CUDA_KERNEL_NODE_PARAMS *params)
{
    WITH_EXEC(exec, handle);
    struct node *node = made_of(exec->graph, node_handle);
    return node ? node_set_kernel(&node->work, params) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    NEEDS(params);
    CUDA_KERNEL_NODE_PARAMS current_params = kernel_of_v1(params);
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &current_params);
}

EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node_handle, CUgraph child_handle)
{
    WITH_EXEC(exec, handle);
    struct graph *child = object_find(child_handle, OBJECT_GRAPH);
    struct node *node = made_of(exec->graph, node_handle);
    if (!child || !node || node->work.type != CU_GRAPH_NODE_TYPE_GRAPH || compare(node->work.graph, child))
        return CUDA_ERROR_INVALID_VALUE;
    take_over(&node->work.graph, child);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
    NEEDS(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphExecKernelNodeSetParams_v2(exec, node, &params->kernel);
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphExecChildGraphNodeSetParams(exec, node, params->graph.graph);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info)
{
    WITH_EXEC(exec, handle);
    struct graph *graph = object_find(graph_handle, OBJECT_GRAPH);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExecUpdateResult result = compare(exec->graph, graph);
    if (info)
        *info = (CUgraphExecUpdateResultInfo){.result = result};
    if (result)
        return 910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
    if (exec->context)
        CHECK(nodes_take(exec->context, graph, &exec->node_bytes));
    take_over(&exec->graph, graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph graph, CUgraphNode *error,
                                  CUgraphExecUpdateResult *result)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult answer = cuGraphExecUpdate_v2(handle, graph, &info);
    if (error)
        *error = NULL;
    if (result)
        *result = info.result;
    return answer;
}

EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle)
{
    WITH_EXEC(exec, handle);
    (void)exec;
    return stream_find(stream_handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* If memory of the last launch is still allocated, a launch frees it or is refused, as the flag says. */
static CUresult free_first(const struct graph *graph, const struct stream *stream, bool may_free)
{
    for (const struct node *node = graph->first; node; node = node->next_in_graph) {
        if (node->work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            continue;
        struct memory *memory = memory_find(node->work.alloc.dptr);
        if (memory && memory->is_live) {
            if (!may_free)
                return CUDA_ERROR_INVALID_VALUE;
            memory_retire(memory, stream);
        }
    }
    return CUDA_SUCCESS;
}

static CUresult run(struct stream *stream, const struct graph *graph, uint64_t exec);

static CUresult run_node(struct stream *stream, const struct work *work, uint64_t exec)
{
    switch (work->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return run(stream, work->graph, exec);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
        const struct graph *body = branch_taken(work);
        return body ? run(stream, body, exec) : CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return memory_revive(memory_find(work->alloc.dptr), stream, exec);
    default: return perform(stream, work);
    }
}

/* Kernels that follow one another go to the card as one piece: a replay costs one submission, not one a node. */
static CUresult run(struct stream *stream, const struct graph *graph, uint64_t exec)
{
    uint64_t kernels_ns = 0;
    for (const struct node *node = graph->first; node; node = node->next_in_graph) {
        if (node->work.type == CU_GRAPH_NODE_TYPE_KERNEL) {
            CHECK(kernel_ready(node->work.kernel.func, stream->context));
            kernels_ns += node->work.duration_ns;
            continue;
        }
        if (kernels_ns)
            submit(stream, kernels_ns);
        kernels_ns = 0;
        CHECK(run_node(stream, &node->work, exec));
    }
    if (kernels_ns)
        submit(stream, kernels_ns);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    WITH_EXEC(exec, handle);
    struct stream *stream = stream_find(stream_handle);
    if (!stream)
        return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    if (stream->capture) /* becomes a child of the graph being made */
        return enqueue(stream,
                       &(struct work){.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = graph_copy(exec->graph, true)});
    CHECK(free_first(exec->graph, stream, exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    return run(stream, exec->graph, exec->object.number);
}
