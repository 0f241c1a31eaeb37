/* Executable graphs: made of a graph, brought up to date with it, launched. */
#include "driver.h"

struct exec {
    struct object object;
    struct graph *graph; /* a copy, its own */
    unsigned long long flags;
};

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags)
{
    WITH_GRAPH(graph, graph_handle);
    if (!handle || flags & ~0xfULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *exec = object_new(OBJECT_EXEC);
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
    graph_free(exec->graph);
    object_free(exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info)
{
    WITH_EXEC(exec, handle);
    struct graph *graph = object_find(graph_handle, OBJECT_GRAPH);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    struct node *now = exec->graph->first, *then = graph->first;
    for (; now && then && !result; now = now->next, then = then->next)
        if (now->work.type != then->work.type)
            result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (!result && (now || then))
        result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (info)
        *info = (CUgraphExecUpdateResultInfo){.result = result};
    if (result)
        return 910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
    graph_free(exec->graph);
    exec->graph = graph_copy(graph, true);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph graph, CUgraphNode *error,
                                  CUgraphExecUpdateResult *result)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult worked = cuGraphExecUpdate_v2(handle, graph, &info);
    if (error)
        *error = NULL;
    if (result)
        *result = info.result;
    return worked;
}

EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle)
{
    WITH_EXEC(exec, handle);
    (void)exec;
    return stream_find(stream_handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* A launch that finds memory of the last one still allocated frees it first, or is refused, as the flag says. */
static CUresult free_first(const struct graph *graph, const struct stream *stream, bool may)
{
    for (const struct node *node = graph->first; node; node = node->next) {
        if (node->work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            continue;
        struct memory *memory = memory_find(node->work.alloc.dptr);
        if (memory && memory->live) {
            if (!may)
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
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return memory_revive(memory_find(work->alloc.dptr), stream, exec);
    default: return perform(stream, work);
    }
}

/* Kernels that follow one another go to the card as one piece: a replay costs one submission, not one a node. */
static CUresult run(struct stream *stream, const struct graph *graph, uint64_t exec)
{
    uint64_t together = 0;
    for (const struct node *node = graph->first; node; node = node->next) {
        if (node->work.type == CU_GRAPH_NODE_TYPE_KERNEL) {
            CHECK(kernel_ready(node->work.kernel.func, stream->context));
            together += node->work.ns;
            continue;
        }
        if (together)
            submit(stream, together);
        together = 0;
        CHECK(run_node(stream, &node->work, exec));
    }
    if (together)
        submit(stream, together);
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
