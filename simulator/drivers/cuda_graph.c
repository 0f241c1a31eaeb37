/* Graphs. A graph's nodes run in the order they were added, which every dependency agrees with: a
 * node can only need nodes that are already there. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(bool owned)
{
    struct graph *graph = object_new(OBJECT_GRAPH);
    graph->is_owned = owned;
    return graph;
}

struct node *graph_add(struct graph *graph, const struct work *work, const CUgraphNode *dependencies, size_t count)
{
    struct node *node = object_new(OBJECT_NODE);
    node->graph = graph;
    node->work = *work;
    node->dependency_count = count;
    node->dependencies = count ? calloc(count, sizeof *node->dependencies) : NULL;
    for (size_t i = 0; i < count; i++)
        node->dependencies[i] = (struct node *)dependencies[i];
    *(graph->last ? &graph->last->next_in_graph : &graph->first) = node;
    graph->last = node;
    graph->node_count++;
    return node;
}

struct graph *graph_copy(const struct graph *source, bool owned)
{
    struct graph *graph = graph_new(owned);
    for (struct node *node = source->first; node; node = node->next_in_graph) {
        struct work work = node->work;
        if (work.type == CU_GRAPH_NODE_TYPE_GRAPH)
            work.graph = graph_copy(work.graph, true);
        if (work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            work.branch.bodies = calloc(work.branch.count, sizeof *work.branch.bodies);
            for (unsigned i = 0; i < work.branch.count; i++)
                work.branch.bodies[i] = graph_copy(node->work.branch.bodies[i], true);
        }
        node->copied_node = graph_add(graph, &work, (const CUgraphNode *)node->dependencies, node->dependency_count);
        node->copied_node->origin = node;
        for (size_t i = 0; i < node->dependency_count; i++)
            node->copied_node->dependencies[i] = node->dependencies[i]->copied_node;
    }
    return graph;
}

void graph_free(struct graph *graph)
{
    for (struct node *node = graph->first, *next_node; node; node = next_node) {
        next_node = node->next_in_graph;
        if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
            graph_free(node->work.graph);
        if (node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            for (unsigned i = 0; i < node->work.branch.count; i++)
                graph_free(node->work.branch.bodies[i]);
            free(node->work.branch.bodies);
        }
        free(node->dependencies);
        object_free(node);
    }
    object_free(graph);
}

static CUresult reserve(struct context *context, struct pool *pool, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct memory *memory;
    CHECK(memory_new(
        &(struct memory){.context = context, .size_bytes = params->bytesize, .kind = MEMORY_GRAPH, .pool = pool}, NULL,
        &memory));
    params->dptr = memory->start;
    params->accessDescs = NULL;
    params->accessDescCount = 0;
    return CUDA_SUCCESS;
}

CUresult captured_alloc(struct stream *stream, struct pool *pool, size_t size, CUdeviceptr *pointer)
{
    struct device *device = pool->device;
    struct work work = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = {.bytesize = size, .poolProps = pool->props}};
    work.alloc.poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, (int)(device - driver.devices)};
    CHECK(reserve(stream->context, device->graph_pool, &work.alloc));
    *pointer = work.alloc.dptr;
    return enqueue(stream, &work);
}

EXPORT CUresult cuGraphCreate(CUgraph *handle, unsigned flags)
{
    LOCKED;
    if (!handle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUgraph)graph_new(false);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph handle)
{
    WITH_GRAPH(graph, handle);
    if (graph->is_owned)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph handle)
{
    WITH_GRAPH(graph, handle);
    if (graph_branches(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    *clone = (CUgraph)graph_copy(graph, false);
    return CUDA_SUCCESS;
}

/* What the body of a condition may have, at any level. */
static bool in_body(const struct work *work)
{
    bool is_allowed = work->type == CU_GRAPH_NODE_TYPE_KERNEL || work->type == CU_GRAPH_NODE_TYPE_EMPTY ||
                      work->type == CU_GRAPH_NODE_TYPE_MEMSET || work->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                      work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL || work->type == CU_GRAPH_NODE_TYPE_GRAPH;
    const struct node *node = work->type == CU_GRAPH_NODE_TYPE_GRAPH ? work->graph->first : NULL;
    for (; is_allowed && node; node = node->next_in_graph)
        is_allowed = in_body(&node->work);
    return is_allowed;
}

static CUresult add(CUgraphNode *handle, struct graph *graph, const CUgraphNode *dependencies, size_t count,
                    const struct work *work)
{
    if (!handle || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->is_body && !in_body(work))
        return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++) {
        const struct node *need = object_find(dependencies[i], OBJECT_NODE);
        if (!need || need->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = (CUgraphNode)graph_add(graph, work, dependencies, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                        size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    WITH_GRAPH(graph, graph_handle);
    struct work work;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(kernel_work(&work, params));
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS current_params = {0};
    memcpy(&current_params, params, sizeof *params);
    return cuGraphAddKernelNode_v2(handle, graph, dependencies, count, &current_params);
}

static struct device *of_context(CUcontext handle)
{
    struct context *context = handle ? object_find(handle, OBJECT_CONTEXT) : current_context();
    return context ? context->device : NULL;
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                     size_t count, const CUDA_MEMCPY3D *params, CUcontext context)
{
    WITH_GRAPH(graph, graph_handle);
    struct work work;
    struct device *device = of_context(context);
    if (!params || !device)
        return params ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    CHECK(copy_node(params, device, &work));
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                     size_t count, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
    WITH_GRAPH(graph, graph_handle);
    struct work work;
    struct device *device = of_context(context);
    if (!params || !device)
        return params ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    CHECK(fill_node(params, device, &work));
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                   size_t count, const CUDA_HOST_NODE_PARAMS *params)
{
    WITH_GRAPH(graph, graph_handle);
    if (!params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.call = params->fn, .argument = params->userData}};
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                         size_t count, CUgraph child_handle)
{
    WITH_GRAPH(graph, graph_handle);
    struct graph *child = object_find(child_handle, OBJECT_GRAPH);
    if (!child || child == graph || graph_branches(child))
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = graph_copy(child, true)};
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                    size_t count)
{
    WITH_GRAPH(graph, graph_handle);
    return add(handle, graph, dependencies, count, &(struct work){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

static CUresult add_event(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies, size_t count,
                          CUevent event_handle, CUgraphNodeType type)
{
    WITH_GRAPH(graph, graph_handle);
    struct event *event = object_find(event_handle, OBJECT_EVENT);
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    return add(handle, graph, dependencies, count, &(struct work){.type = type, .event = event});
}

EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t count, CUevent event)
{
    return add_event(handle, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *dependencies,
                                        size_t count, CUevent event)
{
    return add_event(handle, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    WITH_GRAPH(graph, graph_handle);
    WITH_CONTEXT(context);
    struct device *device = params && params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                ? device_at(params->poolProps.location.id)
                                : NULL;
    if (!device || params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || params->poolProps.handleTypes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device->graph_pool)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct work work = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = *params};
    CHECK(reserve(context, device->graph_pool, &work.alloc));
    params->dptr = work.alloc.dptr;
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies,
                                      size_t count, CUdeviceptr pointer)
{
    WITH_GRAPH(graph, graph_handle);
    struct memory *memory = memory_find(pointer);
    if (!memory || memory->kind != MEMORY_GRAPH || memory->start != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    return add(handle, graph, dependencies, count,
               &(struct work){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = pointer});
}

static CUresult add_branch(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *dependencies, size_t count,
                           CUDA_CONDITIONAL_NODE_PARAMS *params)
{
    WITH_GRAPH(graph, graph_handle);
    struct work work;
    CHECK(branch_node(params, &work));
    return add(handle, graph, dependencies, count, &work);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUgraphNodeParams *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphAddKernelNode_v2(handle, graph, dependencies, count, &params->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(handle, graph, dependencies, count, &params->memcpy.copyParams,
                                    params->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(handle, graph, dependencies, count, &params->memset, NULL);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphAddHostNode(handle, graph, dependencies, count, &params->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(handle, graph, dependencies, count, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(handle, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(handle, graph, dependencies, count, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(handle, graph, dependencies, count, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(handle, graph, dependencies, count, &params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(handle, graph, dependencies, count, params->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return add_branch(handle, graph, dependencies, count, &params->conditional);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *handle, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
    (void)edges;
    return cuGraphAddNode(handle, graph, dependencies, count, params);
}

/* Fills up to *count handles, NULL beyond what there is; asks for the number when nodes is NULL. */
static CUresult list(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots)
{
    WITH_GRAPH(graph, handle);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t node_count = 0;
    for (struct node *node = graph->first; node; node = node->next_in_graph) {
        if (roots && node->dependency_count)
            continue;
        if (nodes && node_count < *count)
            nodes[node_count] = (CUgraphNode)node;
        node_count++;
    }
    for (size_t i = node_count; nodes && i < *count; i++)
        nodes[i] = NULL;
    *count = node_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return list(graph, nodes, count, false);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return list(graph, nodes, count, true);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                                   size_t *count)
{
    WITH_GRAPH(graph, handle);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t edge_count = 0;
    for (struct node *node = graph->first; node; node = node->next_in_graph)
        for (size_t i = 0; i < node->dependency_count; i++, edge_count++)
            if (from && to && edge_count < *count) {
                from[edge_count] = (CUgraphNode)node->dependencies[i];
                to[edge_count] = (CUgraphNode)node;
                if (edges)
                    memset(&edges[edge_count], 0, sizeof *edges);
            }
    *count = edge_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}
