/* What the driver keeps on a device for the nodes of an executable graph (graph_nodes.h).
 *
 * Measured on an NVIDIA H100 (driver 580.159.04, 2026-11-26), by what the card had less: 100 to 112 KiB for each branch
 * of a graph, that is for each node that cannot follow another one; 2.3 to 3 KiB more for a kernel or a copy; and for a
 * kernel of 4000 bytes of parameters 6.2 to 7.6 KiB more than for one of 1024, which took what one of 4 did. 1000
 * kernels in a row took 2.5 MiB and 1000 beside each other 112 MiB. Nothing is taken for empty nodes, and nothing more
 * when it is launched. What a destroyed one had, the driver keeps for the next of the context, until that ends.
 */
#include "graph_size.h"

#include "driver.h"

#include "../core/fault.h"

#include <stdbool.h>
#include <stdlib.h>

/* The most that was measured: 112 KiB, and 115 where the device launches the graph itself. */
#define BRANCH_BYTES         (UINT64_C(115) << 10)
#define NODE_BYTES           (UINT64_C(3) << 10)
#define FREE_PARAMETER_BYTES 1024u /* bytes of parameters that cost nothing more; beyond each costs two */

/* How many nodes before one are looked at for a branch that it may go on with: one that is found later is not known to
 * be free, and a new one is charged. */
#define MAX_SEARCHED 256u

#define NONE UINT32_MAX

struct flat_node {
    uint32_t first_dependency, dependency_count; /* in `need` */
    uint32_t last_search;                        /* by the last search that came here */
    bool ends_branch;                            /* nothing goes on with its branch yet */
};

/* The nodes of a graph and of its child graphs, in the order in which they were added. */
struct flat_graph {
    struct flat_node *nodes;
    uint32_t *dependencies;
    uint32_t node_count, node_capacity, dependency_count, dependency_capacity;
    uint64_t bytes;
    /* The kernel that was met last, and what its parameters cost. */
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

/* Add a node without needs; NONE: no memory. */
static uint32_t append_node(struct flat_graph *flat)
{
    if (!has_capacity((void **)&flat->nodes, &flat->node_capacity, flat->node_count + 1, sizeof *flat->nodes))
        return NONE;
    flat->nodes[flat->node_count] = (struct flat_node){.first_dependency = flat->dependency_count, .last_search = NONE};
    return flat->node_count++;
}

/* Add to the needs of the node that was placed last. */
static bool append_dependency(struct flat_graph *flat, uint32_t dependency)
{
    if (!has_capacity((void **)&flat->dependencies, &flat->dependency_capacity, flat->dependency_count + 1,
                      sizeof *flat->dependencies))
        return false;
    flat->dependencies[flat->dependency_count++] = dependency;
    flat->nodes[flat->node_count - 1].dependency_count++;
    return true;
}

/* The nearest node before this one whose branch nothing goes on with; NONE. */
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
            if (flat->nodes[dependency].last_search != node && queue_length < MAX_SEARCHED) {
                flat->nodes[dependency].last_search = node;
                queue[queue_length++] = dependency;
            }
        }
    }
    return NONE;
}

/* A node that was placed, with its needs, is one that runs. */
static void put_on_branch(struct flat_graph *flat, uint32_t node)
{
    uint32_t branch_end = nearest_branch_end(flat, node);
    if (branch_end == NONE)
        flat->bytes += BRANCH_BYTES;
    else
        flat->nodes[branch_end].ends_branch = false;
    flat->nodes[node].ends_branch = true;
}

/* What the parameters of a kernel cost, where the driver tells of them (CUDA 12.4). */
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

/* A graph as the driver tells of it. */
struct graph_listing {
    TYPE(graphNode) *nodes, *edge_sources, *edge_targets;
    size_t node_count, edge_count;
    uint32_t *hash_slots, slot_mask; /* a node's slot has its number, and one more */
    uint32_t *flat_node;             /* by number: where its branch goes on; NONE: not placed yet */
    uint32_t *edge_end, *edge_order; /* by number: its edges, as indexes of `from`; `first_edge` has one more */
};

static uint32_t slot_of(const struct graph_listing *graph, TYPE(graphNode) node)
{
    uint32_t slot = (uint32_t)((uint64_t)(uintptr_t)node * UINT64_C(0x9e3779b97f4a7c15) >> 32) & graph->slot_mask;
    while (graph->hash_slots[slot] != 0 && graph->nodes[graph->hash_slots[slot] - 1] != node)
        slot = (slot + 1) & graph->slot_mask;
    return slot;
}

/* Its number; NONE: it was added since. */
static uint32_t number_of(const struct graph_listing *graph, TYPE(graphNode) node)
{
    return graph->hash_slots[slot_of(graph, node)] - 1;
}

static bool read_edges(TYPE(graph) graph, struct graph_listing *listed)
{
    typeof(&FUNCTION(GraphGetEdges_v2)) get_with_data = DRIVER(GraphGetEdges_v2);
    typeof(&FUNCTION(GraphGetEdges)) get_edges = DRIVER(GraphGetEdges);
    if ((get_with_data != NULL ? get_with_data(graph, NULL, NULL, NULL, &listed->edge_count)
                               : get_edges(graph, NULL, NULL, &listed->edge_count)) != RESULT_OK)
        return false;
    TYPE(graphEdgeData) *edge_data = calloc(listed->edge_count + 1, sizeof *edge_data);
    listed->edge_sources = calloc(listed->edge_count + 1, sizeof(TYPE(graphNode)));
    listed->edge_targets = calloc(listed->edge_count + 1, sizeof(TYPE(graphNode)));
    listed->edge_order = calloc(listed->edge_count + 1, sizeof *listed->edge_order);
    bool is_read = edge_data != NULL && listed->edge_sources != NULL && listed->edge_targets != NULL &&
                   listed->edge_order != NULL;
    if (is_read && listed->edge_count > 0)
        is_read =
            (get_with_data != NULL
                 ? get_with_data(graph, listed->edge_sources, listed->edge_targets, edge_data, &listed->edge_count)
                 : get_edges(graph, listed->edge_sources, listed->edge_targets, &listed->edge_count)) == RESULT_OK;
    free(edge_data);
    return is_read;
}

/* Have the edges of each node beside each other. */
static void sort_edges(struct graph_listing *graph)
{
    uint32_t *positions =
        graph->edge_end; /* counts, then where the next goes, and so in the end where the next one begins */
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

static bool read_graph(TYPE(graph) graph, struct graph_listing *listed)
{
    if (DRIVER(GraphGetNodes)(graph, NULL, &listed->node_count) != RESULT_OK)
        return false;
    for (listed->slot_mask = 1; listed->slot_mask < 2 * listed->node_count + 1;
         listed->slot_mask = 2 * listed->slot_mask + 1)
        ;
    listed->nodes = calloc(listed->node_count + 1, sizeof(TYPE(graphNode)));
    listed->hash_slots = calloc((size_t)listed->slot_mask + 1, sizeof *listed->hash_slots);
    listed->flat_node = calloc(listed->node_count + 1, sizeof *listed->flat_node);
    listed->edge_end = calloc(listed->node_count + 1, sizeof *listed->edge_end);
    if (listed->nodes == NULL || listed->hash_slots == NULL || listed->flat_node == NULL || listed->edge_end == NULL ||
        (listed->node_count > 0 && DRIVER(GraphGetNodes)(graph, listed->nodes, &listed->node_count) != RESULT_OK))
        return false;
    for (uint32_t node_number = 0; node_number < listed->node_count; node_number++) {
        listed->hash_slots[slot_of(listed, listed->nodes[node_number])] = node_number + 1;
        listed->flat_node[node_number] = NONE;
    }
    if (!read_edges(graph, listed))
        return false;
    sort_edges(listed);
    return true;
}

static void free_graph(struct graph_listing *graph)
{
    void *const arrays[] = {graph->nodes,     graph->edge_sources, graph->edge_targets, graph->hash_slots,
                            graph->flat_node, graph->edge_end,     graph->edge_order};
    for (size_t index = 0; index < sizeof arrays / sizeof *arrays; index++)
        free(arrays[index]);
}

static bool add_graph(struct flat_graph *flat, TYPE(graph) graph, uint32_t predecessor, uint32_t *successor);

/* The node that was placed last needs what this one of the graph does, or else the node `before`. One that comes later
 * in the list is left out, as if this did not follow it: then a branch too many is charged. */
static bool add_dependencies(struct flat_graph *flat, const struct graph_listing *graph, uint32_t node_number,
                             uint32_t predecessor)
{
    uint32_t first_edge = node_number == 0 ? 0 : graph->edge_end[node_number - 1], dependency_count = 0;
    for (uint32_t edge_index = first_edge; edge_index < graph->edge_end[node_number]; edge_index++) {
        uint32_t dependency = number_of(graph, graph->edge_sources[graph->edge_order[edge_index]]);
        if (dependency == NONE || graph->flat_node[dependency] == NONE)
            continue;
        dependency_count++;
        if (!append_dependency(flat, graph->flat_node[dependency]))
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
    graph->flat_node[node_number] = node;
    if (type == VALUE(GRAPH_NODE_TYPE_GRAPH))
        return DRIVER(GraphChildGraphNodeGetGraph)(graph->nodes[node_number], &child) == RESULT_OK &&
               add_graph(flat, child, node, &graph->flat_node[node_number]);
    flat->bytes += node_bytes(flat, graph->nodes[node_number], type);
    if (type != VALUE(GRAPH_NODE_TYPE_EMPTY))
        put_on_branch(flat, node);
    return true;
}

/* Add the nodes of a graph, which follow the node `before`; NONE: nothing. `after` becomes a node that follows them. */
static bool add_graph(struct flat_graph *flat, TYPE(graph) graph, uint32_t predecessor, uint32_t *successor)
{
    struct graph_listing listed = {0};
    bool is_added = read_graph(graph, &listed);
    for (uint32_t node_number = 0; is_added && node_number < listed.node_count; node_number++)
        is_added = add_node_of(flat, &listed, node_number, predecessor);
    uint32_t end_node = is_added && successor != NULL ? append_node(flat) : NONE;
    for (uint32_t node_number = 0; end_node != NONE && is_added && node_number < listed.node_count; node_number++)
        is_added = append_dependency(flat, listed.flat_node[node_number]);
    if (successor != NULL)
        *successor = end_node;
    free_graph(&listed);
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
