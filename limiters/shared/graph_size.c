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
#define OF_BRANCH  (UINT64_C(115) << 10)
#define OF_NODE    (UINT64_C(3) << 10)
#define FREE_WORDS 1024u /* bytes of parameters that cost nothing more; beyond each costs two */

/* How many nodes before one are looked at for a branch that it may go on with: one that is found later is not known to
 * be free, and a new one is charged. */
#define NEAR 256u

#define NONE UINT32_MAX

struct placed {
    uint32_t first_need, needs; /* in `need` */
    uint32_t seen;              /* by the last search that came here */
    bool ends_branch;           /* nothing goes on with its branch yet */
};

/* The nodes of a graph and of its child graphs, in the order in which they were added. */
struct flat {
    struct placed *nodes;
    uint32_t *need;
    uint32_t count, room, need_count, need_room;
    uint64_t bytes;
    /* The kernel that was met last, and what its parameters cost. */
    const void *kernel;
    uint64_t of_kernel;
};

static bool grown(void **array, uint32_t *room, uint32_t wanted, size_t size)
{
    if (wanted <= *room)
        return true;
    uint32_t more = wanted > 2 * *room ? wanted : 2 * *room;
    void *larger = realloc(*array, more * size);
    if (larger == NULL)
        return false;
    *array = larger;
    *room = more;
    return true;
}

/* Add a node without needs; NONE: no memory. */
static uint32_t place(struct flat *flat)
{
    if (!grown((void **)&flat->nodes, &flat->room, flat->count + 1, sizeof *flat->nodes))
        return NONE;
    flat->nodes[flat->count] = (struct placed){.first_need = flat->need_count, .seen = NONE};
    return flat->count++;
}

/* Add to the needs of the node that was placed last. */
static bool need(struct flat *flat, uint32_t other)
{
    if (!grown((void **)&flat->need, &flat->need_room, flat->need_count + 1, sizeof *flat->need))
        return false;
    flat->need[flat->need_count++] = other;
    flat->nodes[flat->count - 1].needs++;
    return true;
}

/* The nearest node before this one whose branch nothing goes on with; NONE. */
static uint32_t free_branch(struct flat *flat, uint32_t node)
{
    uint32_t near[NEAR], count = 1, at = 0;
    near[0] = node;
    while (at < count) {
        const struct placed *here = &flat->nodes[near[at++]];
        for (uint32_t i = 0; i < here->needs; i++) {
            uint32_t other = flat->need[here->first_need + i];
            if (flat->nodes[other].ends_branch)
                return other;
            if (flat->nodes[other].seen != node && count < NEAR) {
                flat->nodes[other].seen = node;
                near[count++] = other;
            }
        }
    }
    return NONE;
}

/* A node that was placed, with its needs, is one that runs. */
static void run_on_branch(struct flat *flat, uint32_t node)
{
    uint32_t before = free_branch(flat, node);
    if (before == NONE)
        flat->bytes += OF_BRANCH;
    else
        flat->nodes[before].ends_branch = false;
    flat->nodes[node].ends_branch = true;
}

/* What the parameters of a kernel cost, where the driver tells of them (CUDA 12.4). */
static uint64_t of_parameters(const NAMED(KERNEL_NODE_PARAMS) *kernel)
{
    size_t offset, size, bytes = 0;
    typeof(&FUNCTION(FuncGetParamInfo)) of_function = DRIVER(FuncGetParamInfo);
    typeof(&FUNCTION(KernelGetParamInfo)) of_kernel = DRIVER(KernelGetParamInfo);
    for (size_t i = 0; kernel->func != NULL && of_function != NULL; i++, bytes = offset + size)
        if (of_function(kernel->func, i, &offset, &size) != RESULT_OK)
            break;
    for (size_t i = 0; kernel->func == NULL && of_kernel != NULL; i++, bytes = offset + size)
        if (of_kernel(kernel->kern, i, &offset, &size) != RESULT_OK)
            break;
    return bytes > FREE_WORDS ? 2 * bytes : 0;
}

static uint64_t of_node(struct flat *flat, TYPE(graphNode) node, TYPE(graphNodeType) type)
{
    NAMED(KERNEL_NODE_PARAMS) kernel = {0};
    if (type != VALUE(GRAPH_NODE_TYPE_KERNEL))
        return type == VALUE(GRAPH_NODE_TYPE_MEMCPY) ? OF_NODE : 0;
    if (DRIVER(GraphKernelNodeGetParams_v2) == NULL || DRIVER(GraphKernelNodeGetParams_v2)(node, &kernel) != RESULT_OK)
        return OF_NODE;
    const void *name = kernel.func != NULL ? (const void *)kernel.func : (const void *)kernel.kern;
    if (name != flat->kernel) {
        flat->of_kernel = of_parameters(&kernel);
        flat->kernel = name;
    }
    return OF_NODE + flat->of_kernel;
}

/* A graph as the driver tells of it. */
struct listed {
    TYPE(graphNode) *nodes, *from, *to;
    size_t count, edges;
    uint32_t *slots, mask;       /* a node's slot has its number, and one more */
    uint32_t *place;             /* by number: where its branch goes on; NONE: not placed yet */
    uint32_t *first_edge, *edge; /* by number: its edges, as indexes of `from`; `first_edge` has one more */
};

static uint32_t slot_of(const struct listed *graph, TYPE(graphNode) node)
{
    uint32_t slot = (uint32_t)((uint64_t)(uintptr_t)node * UINT64_C(0x9e3779b97f4a7c15) >> 32) & graph->mask;
    while (graph->slots[slot] != 0 && graph->nodes[graph->slots[slot] - 1] != node)
        slot = (slot + 1) & graph->mask;
    return slot;
}

/* Its number; NONE: it was added since. */
static uint32_t number_of(const struct listed *graph, TYPE(graphNode) node)
{
    return graph->slots[slot_of(graph, node)] - 1;
}

static bool read_edges(TYPE(graph) graph, struct listed *listed)
{
    typeof(&FUNCTION(GraphGetEdges_v2)) with_data = DRIVER(GraphGetEdges_v2);
    typeof(&FUNCTION(GraphGetEdges)) without = DRIVER(GraphGetEdges);
    if ((with_data != NULL ? with_data(graph, NULL, NULL, NULL, &listed->edges)
                           : without(graph, NULL, NULL, &listed->edges)) != RESULT_OK)
        return false;
    TYPE(graphEdgeData) *data = calloc(listed->edges + 1, sizeof *data);
    listed->from = calloc(listed->edges + 1, sizeof(TYPE(graphNode)));
    listed->to = calloc(listed->edges + 1, sizeof(TYPE(graphNode)));
    listed->edge = calloc(listed->edges + 1, sizeof *listed->edge);
    bool read = data != NULL && listed->from != NULL && listed->to != NULL && listed->edge != NULL;
    if (read && listed->edges > 0)
        read = (with_data != NULL ? with_data(graph, listed->from, listed->to, data, &listed->edges)
                                  : without(graph, listed->from, listed->to, &listed->edges)) == RESULT_OK;
    free(data);
    return read;
}

/* Have the edges of each node beside each other. */
static void sort_edges(struct listed *graph)
{
    uint32_t *at =
        graph->first_edge; /* counts, then where the next goes, and so in the end where the next one begins */
    for (size_t i = 0; i < graph->edges; i++)
        if (number_of(graph, graph->to[i]) != NONE)
            at[number_of(graph, graph->to[i])]++;
    for (uint32_t i = 0, sum = 0; i <= graph->count; i++) {
        uint32_t count = at[i];
        at[i] = sum;
        sum += count;
    }
    for (size_t i = 0; i < graph->edges; i++)
        if (number_of(graph, graph->to[i]) != NONE)
            graph->edge[at[number_of(graph, graph->to[i])]++] = (uint32_t)i;
}

static bool read_graph(TYPE(graph) graph, struct listed *listed)
{
    if (DRIVER(GraphGetNodes)(graph, NULL, &listed->count) != RESULT_OK)
        return false;
    for (listed->mask = 1; listed->mask < 2 * listed->count + 1; listed->mask = 2 * listed->mask + 1)
        ;
    listed->nodes = calloc(listed->count + 1, sizeof(TYPE(graphNode)));
    listed->slots = calloc((size_t)listed->mask + 1, sizeof *listed->slots);
    listed->place = calloc(listed->count + 1, sizeof *listed->place);
    listed->first_edge = calloc(listed->count + 1, sizeof *listed->first_edge);
    if (listed->nodes == NULL || listed->slots == NULL || listed->place == NULL || listed->first_edge == NULL ||
        (listed->count > 0 && DRIVER(GraphGetNodes)(graph, listed->nodes, &listed->count) != RESULT_OK))
        return false;
    for (uint32_t i = 0; i < listed->count; i++) {
        listed->slots[slot_of(listed, listed->nodes[i])] = i + 1;
        listed->place[i] = NONE;
    }
    if (!read_edges(graph, listed))
        return false;
    sort_edges(listed);
    return true;
}

static void free_graph(struct listed *graph)
{
    void *const all[] = {graph->nodes, graph->from,       graph->to,  graph->slots,
                         graph->place, graph->first_edge, graph->edge};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static bool add_graph(struct flat *flat, TYPE(graph) graph, uint32_t before, uint32_t *after);

/* The node that was placed last needs what this one of the graph does, or else the node `before`. One that comes later
 * in the list is left out, as if this did not follow it: then a branch too many is charged. */
static bool follow(struct flat *flat, const struct listed *graph, uint32_t number, uint32_t before)
{
    uint32_t first = number == 0 ? 0 : graph->first_edge[number - 1], needs = 0;
    for (uint32_t i = first; i < graph->first_edge[number]; i++) {
        uint32_t other = number_of(graph, graph->from[graph->edge[i]]);
        if (other == NONE || graph->place[other] == NONE)
            continue;
        needs++;
        if (!need(flat, graph->place[other]))
            return false;
    }
    return needs > 0 || before == NONE || need(flat, before);
}

static bool add_node_of(struct flat *flat, const struct listed *graph, uint32_t number, uint32_t before)
{
    TYPE(graphNodeType) type;
    TYPE(graph) child;
    uint32_t node = place(flat);
    if (node == NONE || DRIVER(GraphNodeGetType)(graph->nodes[number], &type) != RESULT_OK ||
        !follow(flat, graph, number, before))
        return false;
    graph->place[number] = node;
    if (type == VALUE(GRAPH_NODE_TYPE_GRAPH))
        return DRIVER(GraphChildGraphNodeGetGraph)(graph->nodes[number], &child) == RESULT_OK &&
               add_graph(flat, child, node, &graph->place[number]);
    flat->bytes += of_node(flat, graph->nodes[number], type);
    if (type != VALUE(GRAPH_NODE_TYPE_EMPTY))
        run_on_branch(flat, node);
    return true;
}

/* Add the nodes of a graph, which follow the node `before`; NONE: nothing. `after` becomes a node that follows them. */
static bool add_graph(struct flat *flat, TYPE(graph) graph, uint32_t before, uint32_t *after)
{
    struct listed listed = {0};
    bool added = read_graph(graph, &listed);
    for (uint32_t i = 0; added && i < listed.count; i++)
        added = add_node_of(flat, &listed, i, before);
    uint32_t end = added && after != NULL ? place(flat) : NONE;
    for (uint32_t i = 0; end != NONE && added && i < listed.count; i++)
        added = need(flat, listed.place[i]);
    if (after != NULL)
        *after = end;
    free_graph(&listed);
    return added && (after == NULL || end != NONE);
}

uint64_t graph_size(TYPE(graph) graph)
{
    struct flat flat = {0};
    bool read = add_graph(&flat, graph, NONE, NULL);
    free(flat.nodes);
    free(flat.need);
    return read && !FAULT(graph_nodes_uncharged) ? flat.bytes : 0;
}
