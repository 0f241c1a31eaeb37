/* Parameters of the nodes of graphs and of executable graphs, and conditional nodes with their bodies. A condition
 * keeps its default value, because no simulated kernel sets one: a loop ends after one iteration. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    WITH_NODE(node, handle);
    if (node->work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->work.alloc;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *pointer)
{
    WITH_NODE(node, handle);
    if (node->work.type != CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = node->work.free;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *params)
{
    WITH_NODE(node, handle);
    if (node->work.type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->work.kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *graph)
{
    WITH_NODE(node, handle);
    if (node->work.type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = (CUgraph)node->work.graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    WITH_NODE(node, handle);
    *type = node->work.type;
    return CUDA_SUCCESS;
}

CUresult kernel_work(struct work *work, const CUDA_KERNEL_NODE_PARAMS *params)
{
    NEEDS(params);
    unsigned dims[7] = {params->gridDimX,  params->gridDimY,  params->gridDimZ,      params->blockDimX,
                        params->blockDimY, params->blockDimZ, params->sharedMemBytes};
    return launch_work(work, params->func ? params->func : (CUfunction)params->kern, dims, params->kernelParams,
                       params->extra);
}

CUresult node_set_kernel(struct work *work, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct work new_work;
    if (work->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(kernel_work(&new_work, params));
    *work = new_work;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
    WITH_NODE(node, handle);
    return node_set_kernel(&node->work, params);
}

CUDA_KERNEL_NODE_PARAMS kernel_of_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUDA_KERNEL_NODE_PARAMS current_params = {0};
    memcpy(&current_params, params, sizeof *params);
    return current_params;
}

EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    NEEDS(params);
    CUDA_KERNEL_NODE_PARAMS current_params = kernel_of_v1(params);
    return cuGraphKernelNodeSetParams_v2(handle, &current_params);
}

EXPORT CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams *params)
{
    WITH_NODE(node, handle);
    NEEDS(params);
    if (params->type != node->work.type)
        return CUDA_ERROR_INVALID_VALUE;
    return params->type == CU_GRAPH_NODE_TYPE_KERNEL ? node_set_kernel(&node->work, &params->kernel)
                                                     : CUDA_ERROR_NOT_SUPPORTED; /* those of copies are not simulated */
}

#define IS_CONDITION (UINT64_C(1) << 32) /* and below it its value */

EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph_handle,
                                               CUcontext context, unsigned value, unsigned flags)
{
    WITH_GRAPH(graph, graph_handle);
    (void)graph, (void)context;
    if (!handle || flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = IS_CONDITION | (flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0);
    return CUDA_SUCCESS;
}

CUresult branch_node(CUDA_CONDITIONAL_NODE_PARAMS *params, struct work *work)
{
    unsigned max_bodies = params->type == CU_GRAPH_COND_TYPE_WHILE ? 1
                          : params->type == CU_GRAPH_COND_TYPE_IF  ? 2
                                                                   : UINT32_MAX;
    if (!(params->handle & IS_CONDITION) || params->size == 0 || params->size > max_bodies)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph **bodies = calloc(params->size, sizeof *bodies);
    for (unsigned i = 0; i < params->size; i++) {
        bodies[i] = graph_new(true);
        bodies[i]->is_body = true;
    }
    *work = (struct work){.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                          .branch = {bodies, params->size, (unsigned)params->handle, params->type}};
    params->phGraph_out = (CUgraph *)bodies;
    return CUDA_SUCCESS;
}

bool graph_branches(const struct graph *graph)
{
    bool has_branch = false;
    for (const struct node *node = graph->first; node && !has_branch; node = node->next_in_graph)
        has_branch = node->work.type == CU_GRAPH_NODE_TYPE_CONDITIONAL ||
                     (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH && graph_branches(node->work.graph));
    return has_branch;
}

const struct graph *branch_taken(const struct work *work)
{
    unsigned value = work->branch.value, count = work->branch.count;
    if (work->branch.type != CU_GRAPH_COND_TYPE_SWITCH)
        value = value == 0; /* the second body is for what is not so */
    return value < count ? work->branch.bodies[value] : NULL;
}
