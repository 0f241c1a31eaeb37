/* Computes the device memory that the driver keeps for the nodes of an executable graph (graph_nodes.h).
 *
 * Measured on an NVIDIA H100 (driver 580.159.04, 2026-11-26), by the card's free memory: 100 to 112 KiB for each branch
 * of a graph, that is for each node that cannot follow another one on its branch; 2.3 to 3 KiB more for a kernel or a
 * copy. A kernel with 4000 bytes of parameters took 6.2 to 7.6 KiB more than one with 1024, which took as much as one
 * with 4. 1000 kernels in a row took 2.5 MiB, and 1000 parallel ones 112 MiB. Empty nodes take nothing, and launches
 * take nothing more. The context keeps the memory of a destroyed executable graph for the next one.
 */
#include "graph_size.h"

#include "driver.h"

#include "../core/fault.h"

#include <stdbool.h>
#include <stdlib.h>

/* The largest figures that were measured: 112 KiB for a branch, and 115 if the device launches the graph itself. */
#define BRANCH_BYTES         (UINT64_C(115) << 10)
#define NODE_BYTES           (UINT64_C(3) << 10)
#define FREE_PARAMETER_BYTES 1024u /* parameters up to here take nothing more; beyond, each byte takes two */

/* How many preceding nodes are searched for a branch that a node can continue. Without one among them a new branch is
 * charged. */
#define MAX_SEARCHED 256u

#define NONE UINT32_MAX

struct flat_node {
    uint32_t first_dependency, dependency_count; /* its part of flat_graph.dependencies */
    uint32_t last_search_node;                   /* the node of the last search that visited this one */
    bool ends_branch;                            /* it runs, and no node continues its branch yet */
};

/* The nodes of a graph and of its child graphs, in the order in which they were added. */
struct flat_graph {
    struct flat_node *nodes;
    uint32_t *dependencies; /* numbers of nodes, those of each node together */
    uint32_t node_count, node_capacity, dependency_count, dependency_capacity;
    uint64_t bytes; /* that the driver keeps for the nodes so far */
    /* The last kernel node's function, and the bytes that its parameters take. */
    const void *last_kernel;
    uint64_t last_parameter_bytes;
};

static bool has_capacity(void **array, uint32_t *capacity, uint32_t wanted_count, size_t element_bytes)
{
    if (wanted_count <= *capacity)
        return true;
    uint32_t new_capacity = wanted_count > 2 * *capacity ? wanted_count : 2 * *capacity;
    void *larger = realloc(*array, new_capacity * element_bytes);
    if (larger == NULL)
        return false;
    *array = larger;
    *capacity = new_capacity;
    return true;
}

/* Append a node without dependencies. Returns its number; NONE: no memory. */
static uint32_t append_node(struct flat_graph *flat)
{
    if (!has_capacity((void **)&flat->nodes, &flat->node_capacity, flat->node_count + 1, sizeof *flat->nodes))
        return NONE;
    flat->nodes[flat->node_count] = (struct flat_node){.first_dependency = flat->dependency_count,
                                                       .last_search_node = NONE};
    return flat->node_count++;
}

/* Add a dependency to the last node. */
static bool append_dependency(struct flat_graph *flat, uint32_t dependency)
{
    if (!has_capacity((void **)&flat->dependencies, &flat->dependency_capacity, flat->dependency_count + 1,
                      sizeof *flat->dependencies))
        return false;
    flat->dependencies[flat->dependency_count++] = dependency;
    flat->nodes[flat->node_count - 1].dependency_count++;
    return true;
}

/* The nearest preceding node at the end of a branch, by a breadth-first search; NONE: there is none. */
static uint32_t nearest_branch_end(struct flat_graph *flat, uint32_t node)
{
    uint32_t queue[MAX_SEARCHED], queue_length = 1, queue_index = 0;
    queue[0] = node;
    while (queue_index < queue_length) {
        const struct flat_node *current = &flat->nodes[queue[queue_index++]];
        for (uint32_t dependency_index = 0; dependency_index < current->dependency_count; dependency_index++) {
            uint32_t dependency = flat->dependencies[current->first_dependency + dependency_index];
            if (flat->nodes[dependency].ends_branch)
                return dependency;
            if (flat->nodes[dependency].last_search_node != node && queue_length < MAX_SEARCHED) {
                flat->nodes[dependency].last_search_node = node;
                queue[queue_length++] = dependency;
            }
        }
    }
    return NONE;
}

/* Put a node that runs, with its dependencies, on a preceding branch or a new one. */
static void put_on_branch(struct flat_graph *flat, uint32_t node)
{
    uint32_t branch_end = nearest_branch_end(flat, node);
    if (branch_end == NONE)
        flat->bytes += BRANCH_BYTES;
    else
        flat->nodes[branch_end].ends_branch = false;
    flat->nodes[node].ends_branch = true;
}

/* The bytes that a kernel's parameters take, if the driver has a call that lists them (CUDA 12.4). */
static uint64_t parameter_bytes(const NAMED(KERNEL_NODE_PARAMS) *kernel)
{
    size_t offset, size_bytes, bytes = 0;
    typeof(&FUNCTION(FuncGetParamInfo)) function_info = DRIVER(FuncGetParamInfo);
    typeof(&FUNCTION(KernelGetParamInfo)) kernel_info = DRIVER(KernelGetParamInfo);
    for (size_t parameter = 0; kernel->func != NULL && function_info != NULL; parameter++, bytes = offset + size_bytes)
        if (function_info(kernel->func, parameter, &offset, &size_bytes) != RESULT_OK)
            break;
    for (size_t parameter = 0; kernel->func == NULL && kernel_info != NULL; parameter++, bytes = offset + size_bytes)
        if (kernel_info(kernel->kern, parameter, &offset, &size_bytes) != RESULT_OK)
            break;
    return bytes > FREE_PARAMETER_BYTES ? 2 * bytes : 0;
}

static uint64_t node_bytes(struct flat_graph *flat, TYPE(graphNode) node, TYPE(graphNodeType) type)
{
    NAMED(KERNEL_NODE_PARAMS) kernel = {0};
    if (type != VALUE(GRAPH_NODE_TYPE_KERNEL))
        return type == VALUE(GRAPH_NODE_TYPE_MEMCPY) ? NODE_BYTES : 0;
    if (DRIVER(GraphKernelNodeGetParams_v2) == NULL || DRIVER(GraphKernelNodeGetParams_v2)(node, &kernel) != RESULT_OK)
        return NODE_BYTES;
    const void *handle = kernel.func != NULL ? (const void *)kernel.func : (const void *)kernel.kern;
    if (handle != flat->last_kernel) {
        flat->last_parameter_bytes = parameter_bytes(&kernel);
        flat->last_kernel = handle;
    }
    return NODE_BYTES + flat->last_parameter_bytes;
}

/* A graph as the driver lists it. A node's number is its index in `nodes`. */
struct graph_listing {
    TYPE(graphNode) *nodes, *edge_sources, *edge_targets;
    size_t node_count, edge_count;
    uint32_t *hash_slots, slot_mask; /* a hash table of nodes: number + 1, 0: empty; its size - 1 */
    uint32_t *flat_nodes;            /* by number: the node of the flat graph that others depend on; NONE: none yet */
    uint32_t *edge_ends;             /* by number: where the edges to that node end in `edge_order` */
    uint32_t *edge_order;            /* indexes of edges, those to each target together */
};

static uint32_t slot_of(const struct graph_listing *graph, TYPE(graphNode) node)
{
    uint32_t slot = (uint32_t)((uint64_t)(uintptr_t)node * UINT64_C(0x9e3779b97f4a7c15) >> 32) & graph->slot_mask;
    while (graph->hash_slots[slot] != 0 && graph->nodes[graph->hash_slots[slot] - 1] != node)
        slot = (slot + 1) & graph->slot_mask;
    return slot;
}

/* A node's number; NONE: it was added after the nodes were listed. */
static uint32_t number_of(const struct graph_listing *graph, TYPE(graphNode) node)
{
    return graph->hash_slots[slot_of(graph, node)] - 1;
}

static bool read_edges(TYPE(graph) graph, struct graph_listing *list)
{
    typeof(&FUNCTION(GraphGetEdges_v2)) get_with_data = DRIVER(GraphGetEdges_v2);
    typeof(&FUNCTION(GraphGetEdges)) get_edges = DRIVER(GraphGetEdges);
    if ((get_with_data != NULL ? get_with_data(graph, NULL, NULL, NULL, &list->edge_count)
                               : get_edges(graph, NULL, NULL, &list->edge_count)) != RESULT_OK)
        return false;
    TYPE(graphEdgeData) *edge_data = calloc(list->edge_count + 1, sizeof *edge_data);
    list->edge_sources = calloc(list->edge_count + 1, sizeof(TYPE(graphNode)));
    list->edge_targets = calloc(list->edge_count + 1, sizeof(TYPE(graphNode)));
    list->edge_order = calloc(list->edge_count + 1, sizeof *list->edge_order);
    bool is_read = edge_data != NULL && list->edge_sources != NULL && list->edge_targets != NULL &&
                   list->edge_order != NULL;
    if (is_read && list->edge_count > 0)
        is_read = (get_with_data != NULL
                       ? get_with_data(graph, list->edge_sources, list->edge_targets, edge_data, &list->edge_count)
                       : get_edges(graph, list->edge_sources, list->edge_targets, &list->edge_count)) == RESULT_OK;
    free(edge_data);
    return is_read;
}

/* Sort the edges by their targets. */
static void sort_edges(struct graph_listing *graph)
{
    uint32_t *positions =
        graph->edge_ends; /* counts, then where the next goes, and so in the end where the next one begins */
    for (size_t index = 0; index < graph->edge_count; index++)
        if (number_of(graph, graph->edge_targets[index]) != NONE)
            positions[number_of(graph, graph->edge_targets[index])]++;
    for (uint32_t index = 0, position = 0; index <= graph->node_count; index++) {
        uint32_t edge_count = positions[index];
        positions[index] = position;
        position += edge_count;
    }
    for (size_t index = 0; index < graph->edge_count; index++)
        if (number_of(graph, graph->edge_targets[index]) != NONE)
            graph->edge_order[positions[number_of(graph, graph->edge_targets[index])]++] = (uint32_t)index;
}

static bool read_graph(TYPE(graph) graph, struct graph_listing *list)
{
    if (DRIVER(GraphGetNodes)(graph, NULL, &list->node_count) != RESULT_OK)
        return false;
    for (list->slot_mask = 1; list->slot_mask < 2 * list->node_count + 1; list->slot_mask = 2 * list->slot_mask + 1)
        ;
    list->nodes = calloc(list->node_count + 1, sizeof(TYPE(graphNode)));
    list->hash_slots = calloc((size_t)list->slot_mask + 1, sizeof *list->hash_slots);
    list->flat_nodes = calloc(list->node_count + 1, sizeof *list->flat_nodes);
    list->edge_ends = calloc(list->node_count + 1, sizeof *list->edge_ends);
    if (list->nodes == NULL || list->hash_slots == NULL || list->flat_nodes == NULL || list->edge_ends == NULL ||
        (list->node_count > 0 && DRIVER(GraphGetNodes)(graph, list->nodes, &list->node_count) != RESULT_OK))
        return false;
    for (uint32_t node_number = 0; node_number < list->node_count; node_number++) {
        list->hash_slots[slot_of(list, list->nodes[node_number])] = node_number + 1;
        list->flat_nodes[node_number] = NONE;
    }
    if (!read_edges(graph, list))
        return false;
    sort_edges(list);
    return true;
}

static void free_graph(struct graph_listing *graph)
{
    void *const arrays[] = {graph->nodes,      graph->edge_sources, graph->edge_targets, graph->hash_slots,
                            graph->flat_nodes, graph->edge_ends,    graph->edge_order};
    for (size_t index = 0; index < sizeof arrays / sizeof *arrays; index++)
        free(arrays[index]);
}

static bool add_graph(struct flat_graph *flat, TYPE(graph) graph, uint32_t predecessor, uint32_t *successor);

/* Give the last node of the flat graph the dependencies of this node, or else `predecessor` as its only one. A
 * dependency that is listed after the node is left out: then a branch too many is charged. */
static bool add_dependencies(struct flat_graph *flat, const struct graph_listing *graph, uint32_t node_number,
                             uint32_t predecessor)
{
    uint32_t first_edge = node_number == 0 ? 0 : graph->edge_ends[node_number - 1], dependency_count = 0;
    for (uint32_t edge_index = first_edge; edge_index < graph->edge_ends[node_number]; edge_index++) {
        uint32_t dependency = number_of(graph, graph->edge_sources[graph->edge_order[edge_index]]);
        if (dependency == NONE || graph->flat_nodes[dependency] == NONE)
            continue;
        dependency_count++;
        if (!append_dependency(flat, graph->flat_nodes[dependency]))
            return false;
    }
    return dependency_count > 0 || predecessor == NONE || append_dependency(flat, predecessor);
}

static bool add_node_of(struct flat_graph *flat, const struct graph_listing *graph, uint32_t node_number,
                        uint32_t predecessor)
{
    TYPE(graphNodeType) type;
    TYPE(graph) child;
    uint32_t node = append_node(flat);
    if (node == NONE || DRIVER(GraphNodeGetType)(graph->nodes[node_number], &type) != RESULT_OK ||
        !add_dependencies(flat, graph, node_number, predecessor))
        return false;
    graph->flat_nodes[node_number] = node;
    if (type == VALUE(GRAPH_NODE_TYPE_GRAPH))
        return DRIVER(GraphChildGraphNodeGetGraph)(graph->nodes[node_number], &child) == RESULT_OK &&
               add_graph(flat, child, node, &graph->flat_nodes[node_number]);
    flat->bytes += node_bytes(flat, graph->nodes[node_number], type);
    if (type != VALUE(GRAPH_NODE_TYPE_EMPTY))
        put_on_branch(flat, node);
    return true;
}

/* Add the nodes of a graph, which depend on `predecessor` (NONE: on nothing). `successor` is set to a new node that
 * depends on all of them. */
static bool add_graph(struct flat_graph *flat, TYPE(graph) graph, uint32_t predecessor, uint32_t *successor)
{
    struct graph_listing list = {0};
    bool is_added = read_graph(graph, &list);
    for (uint32_t node_number = 0; is_added && node_number < list.node_count; node_number++)
        is_added = add_node_of(flat, &list, node_number, predecessor);
    uint32_t end_node = is_added && successor != NULL ? append_node(flat) : NONE;
    for (uint32_t node_number = 0; end_node != NONE && is_added && node_number < list.node_count; node_number++)
        is_added = append_dependency(flat, list.flat_nodes[node_number]);
    if (successor != NULL)
        *successor = end_node;
    free_graph(&list);
    return is_added && (successor == NULL || end_node != NONE);
}

uint64_t graph_size(TYPE(graph) graph)
{
    struct flat_graph flat = {0};
    bool is_read = add_graph(&flat, graph, NONE, NULL);
    free(flat.nodes);
    free(flat.dependencies);
    return is_read && !FAULT(graph_nodes_uncharged) ? flat.bytes : 0;
}
