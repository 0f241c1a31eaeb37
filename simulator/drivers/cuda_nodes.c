/* Memory that an executable graph is charged for its nodes, which no call reports. An H100 (driver 580.159.04,
 * 2026-11-26) takes 112 KiB for each branch, 2.5 KiB for a kernel or a copy, and 8.6 KiB for a kernel with more than
 * 1024 bytes of parameters. A context keeps the largest amount that its graphs needed. The first block is part of
 * the context's own memory. */
#include "driver.h"

#include <stdlib.h>

#define OF_BRANCH        (UINT64_C(112) << 10)
#define OF_NODE          UINT64_C(2560)
#define OF_LARGE         UINT64_C(8800)
#define LARGE_PARAMETERS 1024u

static uint64_t of_node(const struct work *work)
{
    if (work->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        const struct function *function = object_find(work->kernel.func, OBJECT_FUNCTION);
        return function && function->parameter_bytes > LARGE_PARAMETERS ? OF_LARGE : OF_NODE;
    }
    return work->type == CU_GRAPH_NODE_TYPE_MEMCPY ? OF_NODE : 0;
}

/* A node continues the branch of its first dependency that no other node continues. If there is none, it starts a
 * branch. */
static uint64_t taken(const struct graph *graph)
{
    uint64_t bytes = 0;
    for (struct node *node = graph->first; node; node = node->next_in_graph)
        node->is_branch_continued = node->work.type == CU_GRAPH_NODE_TYPE_EMPTY;
    for (const struct node *node = graph->first; node; node = node->next_in_graph) {
        size_t i = 0;
        if (node->work.type == CU_GRAPH_NODE_TYPE_EMPTY)
            continue;
        while (i < node->dependency_count && node->dependencies[i]->is_branch_continued)
            i++;
        if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH)
            bytes += taken(node->work.graph);
        else
            bytes += of_node(&node->work) + (i == node->dependency_count ? OF_BRANCH : 0);
        if (i < node->dependency_count)
            node->dependencies[i]->is_branch_continued = true;
    }
    return bytes;
}

CUresult nodes_take(struct context *context, const struct graph *graph, uint64_t *held_bytes)
{
    uint64_t bytes = taken(graph), blocks = round_up(context->exec_used_bytes + bytes - *held_bytes, BLOCK);
    uint64_t needed_bytes = blocks > BLOCK ? blocks - BLOCK : 0;
    if (needed_bytes > context->exec_charged_bytes) {
        if (!engine_charge(context->device->account, needed_bytes - context->exec_charged_bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        context->exec_charged_bytes = needed_bytes;
    }
    context->exec_used_bytes += bytes - *held_bytes;
    *held_bytes = bytes;
    return CUDA_SUCCESS;
}
