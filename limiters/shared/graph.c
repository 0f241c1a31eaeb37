/* Graphs: the memory that their allocation nodes take of the pool of graphs is charged when they are instantiated, for
 * the first launch, and when they are launched again or after they were brought up to another graph. What they
 * allocated and did not free outlives them.
 */
#include "graph.h"

#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "graph_nodes.h"
#include "launch.h"
#include "pools.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <stdlib.h>

/* What a graph takes: of each device of the grant; or what it may not have. */
struct needs {
    uint64_t bytes[HETERO_MAX_DEVICES];
    bool too_much;
};

static bool sum_nodes(TYPE(graph) graph, struct needs *needs);

static bool sum_node(TYPE(graphNode) node, struct needs *needs)
{
    TYPE(graphNodeType) type;
    TYPE(graph) child;
    NAMED(MEM_ALLOC_NODE_PARAMS) params;
    if (DRIVER(GraphNodeGetType)(node, &type) != RESULT_OK)
        return false;
    if (type == VALUE(GRAPH_NODE_TYPE_GRAPH))
        return DRIVER(GraphChildGraphNodeGetGraph)(node, &child) == RESULT_OK && sum_nodes(child, needs);
    if (type != VALUE(GRAPH_NODE_TYPE_MEM_ALLOC))
        return true;
    if (DRIVER(GraphMemAllocNodeGetParams)(node, &params) != RESULT_OK)
        return false;
    int device = device_of(params.poolProps.location.id);
    if (device >= 0)
        needs->bytes[device] += params.bytesize;
    needs->too_much = needs->too_much || device == DEVICE_FOREIGN;
    return true;
}

/* Add up the nodes of a graph and of its child graphs. */
static bool sum_nodes(TYPE(graph) graph, struct needs *needs)
{
    size_t count = 0;
    if (DRIVER(GraphGetNodes)(graph, NULL, &count) != RESULT_OK || count == 0)
        return count == 0;
    TYPE(graphNode) *nodes = malloc(count * sizeof *nodes);
    bool read = nodes != NULL && DRIVER(GraphGetNodes)(graph, nodes, &count) == RESULT_OK;
    for (size_t i = 0; read && i < count; i++)
        read = sum_node(nodes[i], needs);
    free(nodes);
    return read;
}

struct bill {
    uint64_t bytes[HETERO_MAX_DEVICES];
};

/* What an entry links to whose first launch is charged already. */
static char prepaid;

static _Atomic unsigned with_memory; /* executable graphs, one for each device that they take memory of */

/* Whether an executable graph was made since the last launch of one: the driver may take memory for it then. */
static _Atomic bool fresh;

static void refund_bill(const struct bill *bill)
{
    for (int d = 0; d < (int)HETERO_MAX_DEVICES; d++)
        refund(d, counted(d) ? pool_chunks(bill->bytes[d]) : 0);
}

/* Charge what is not on the bill yet. Another thread may add nodes until the driver has made the executable graph, and
 * cannot take away any that allocates. */
static result_t charge_graph(TYPE(graph) graph, struct bill *bill)
{
    struct needs needs = {0};
    if (tenancy() == TENANCY_REFUSED)
        return ERROR(NOT_PERMITTED);
    if (!sum_nodes(graph, &needs)) /* the driver will say what is wrong with the graph */
        return RESULT_OK;
    result_t answer = needs.too_much ? ERROR(OUT_OF_MEMORY) : RESULT_OK;
    for (int d = 0; answer == RESULT_OK && d < (int)HETERO_MAX_DEVICES; d++) {
        if (needs.bytes[d] <= bill->bytes[d] || !counted(d))
            continue;
        uint64_t more = pool_chunks(needs.bytes[d]) - pool_chunks(bill->bytes[d]);
        answer = pool_countable(POOL_OF_GRAPHS(d), d, POOL_OF_DEVICE) ? charge(d, more) : ERROR(NOT_SUPPORTED);
        if (answer == RESULT_OK)
            bill->bytes[d] = needs.bytes[d];
    }
    if (answer != RESULT_OK)
        refund_bill(bill);
    return answer;
}

static void forget_exec(const struct entry *entry)
{
    int device = (int)(entry->kind - HELD_EXEC);
    atomic_fetch_sub(&with_memory, 1);
    if (entry->link == &prepaid)
        refund(device, pool_chunks(entry->bytes));
    pools_trim(device);
}

static result_t settle_graph(result_t answer, const TYPE(graphExec) *exec, const struct bill *bill)
{
    struct entry previous;
    if (answer != RESULT_OK)
        refund_bill(bill);
    for (int d = 0; answer == RESULT_OK && d < (int)HETERO_MAX_DEVICES; d++) {
        struct entry entry = {
            .kind = HELD_EXEC + (uint32_t)d, .key = (uintptr_t)*exec, .bytes = bill->bytes[d], .link = &prepaid};
        if (entry.bytes == 0 || !table_put(&entry, &previous))
            continue;
        atomic_fetch_add(&with_memory, 1);
        if (previous.kind != 0)
            forget_exec(&previous);
    }
    return answer;
}

/* What the driver keeps of a graph's nodes on the device no call tells: what that is beyond what was charged for it may
 * not be more than there is. */
static result_t made(result_t answer, const TYPE(graphExec) *exec, const struct bill *bill, uint64_t of_nodes)
{
    nodes_made(answer, exec, of_nodes);
    answer = settle_graph(answer, exec, bill);
    if (answer != RESULT_OK)
        return answer;
    atomic_store(&fresh, true);
    if (FAULT(graph_memory_uncharged) || uncounted_settle(device_current()))
        return RESULT_OK;
    destroy_exec(DRIVER(GraphExecDestroy), *exec);
    uncounted_settle(device_current());
    return ERROR(OUT_OF_MEMORY);
}

static result_t charge_before(TYPE(graph) graph, struct bill *bill, uint64_t *of_nodes)
{
    result_t answer = charge_graph(graph, bill);
    if (answer == RESULT_OK && (answer = nodes_charge(graph, of_nodes)) != RESULT_OK)
        refund_bill(bill);
    return answer;
}

/* The driver made it: what was added meanwhile is charged, too. */
static result_t charge_again(TYPE(graph) graph, struct bill *bill, uint64_t *of_nodes)
{
    result_t answer = charge_graph(graph, bill);
    if (answer != RESULT_OK)
        nodes_made(answer, NULL, *of_nodes);
    else if ((answer = nodes_charge_more(graph, of_nodes)) != RESULT_OK)
        refund_bill(bill);
    return answer;
}

#define INSTANTIATE(call)                                                                                              \
    do {                                                                                                               \
        struct bill bill = {0};                                                                                        \
        uint64_t of_nodes;                                                                                             \
        if (!FAULT(graph_memory_uncharged) && !uncounted_settle(device_current()))                                     \
            return ERROR(OUT_OF_MEMORY);                                                                               \
        result_t answer = charge_before(graph, &bill, &of_nodes);                                                      \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = call;                                                                                                 \
        if (answer != RESULT_OK || (answer = charge_again(graph, &bill, &of_nodes)) == RESULT_OK)                      \
            return made(answer, exec, &bill, of_nodes);                                                                \
        DRIVER(GraphExecDestroy)(*exec);                                                                               \
        return answer;                                                                                                 \
    } while (0)

result_t instantiate_logged(result_t (*real)(TYPE(graphExec) *, TYPE(graph), TYPE(graphNode) *, char *, size_t),
                            TYPE(graphExec) *exec, TYPE(graph) graph, TYPE(graphNode) *error, char *log,
                            size_t log_size)
{
    INSTANTIATE(real(exec, graph, error, log, log_size));
}

result_t instantiate_flags(result_t (*real)(TYPE(graphExec) *, TYPE(graph), unsigned long long), TYPE(graphExec) *exec,
                           TYPE(graph) graph, unsigned long long flags)
{
    INSTANTIATE(real(exec, graph, flags));
}

result_t instantiate_with(result_t (*real)(TYPE(graphExec) *, TYPE(graph), NAMED(GRAPH_INSTANTIATE_PARAMS) *),
                          stream_t none, TYPE(graphExec) *exec, TYPE(graph) graph,
                          NAMED(GRAPH_INSTANTIATE_PARAMS) *params)
{
    (void)none;
    INSTANTIATE(real(exec, graph, params));
}

void graphs_after_fork(void)
{
    nodes_after_fork();
}

result_t destroy_exec(result_t (*real)(TYPE(graphExec)), TYPE(graphExec) exec)
{
    struct entry held[HETERO_MAX_DEVICES], previous;
    bool ours[HETERO_MAX_DEVICES];
    for (uint32_t d = 0; d < HETERO_MAX_DEVICES; d++)
        ours[d] = table_take(HELD_EXEC + d, (uintptr_t)exec, &held[d]);
    nodes_over(exec);
    result_t answer = real(exec);
    for (uint32_t d = 0; d < HETERO_MAX_DEVICES; d++) {
        if (ours[d] && answer == RESULT_OK)
            forget_exec(&held[d]);
        else if (ours[d])
            table_put(&held[d], &previous);
    }
    uncounted_look(device_current());
    return answer;
}

/* An update keeps the types of nodes, so that where no executable graph has memory none gets any. What it may not have
 * at all never fits. */
result_t graph_brought_up(result_t answer, TYPE(graphExec) exec, TYPE(graph) graph, bool in_all)
{
    struct needs needs = {0};
    struct entry entry, previous;
    if (answer != RESULT_OK || FAULT(graph_updates_uncharged) || atomic_load(&with_memory) == 0 ||
        !sum_nodes(graph, &needs))
        return answer;
    for (int d = 0; d < (int)HETERO_MAX_DEVICES; d++) {
        bool had = table_get(HELD_EXEC + (uint32_t)d, (uintptr_t)exec, &entry);
        uint64_t bytes = needs.too_much ? UINT64_MAX : needs.bytes[d] + (had && !in_all ? entry.bytes : 0);
        if (!counted(d) || (bytes == 0 && !had) ||
            !table_put(&(struct entry){.kind = HELD_EXEC + (uint32_t)d, .key = (uintptr_t)exec, .bytes = bytes},
                       &previous))
            continue;
        atomic_fetch_add(&with_memory, 1);
        if (previous.kind != 0)
            forget_exec(&previous);
    }
    return answer;
}

/* ------------------------------------------------------------------------------------------------- launches of graphs
 */

/* What the pools of graphs add while this graph is launched. */
struct growths {
    struct growth of[HETERO_MAX_DEVICES];
};

static void grown(struct growths *growths, stream_t stream)
{
    for (int d = (int)HETERO_MAX_DEVICES - 1; d >= 0; d--)
        if (growths->of[d].pool != NULL) {
            pools_used(d, stream);
            pool_grown(&growths->of[d]);
        }
}

static result_t grow(struct growths *growths, TYPE(graphExec) exec, stream_t stream)
{
    result_t answer = RESULT_OK;
    struct entry entry, previous;
    *growths = (struct growths){0};
    for (int d = 0; answer == RESULT_OK && d < (int)HETERO_MAX_DEVICES; d++) {
        struct pool *pool;
        if (!table_get(HELD_EXEC + (uint32_t)d, (uintptr_t)exec, &entry) ||
            (pool = pool_remember(POOL_OF_GRAPHS(d), d, POOL_OF_DEVICE)) == NULL)
            continue;
        uint64_t paid = entry.link == &prepaid ? pool_chunks(entry.bytes) : 0;
        answer = pool_grow(&growths->of[d], pool, entry.bytes, paid, stream);
        if (answer != RESULT_OK)
            growths->of[d].pool = NULL;
        entry.link = NULL;
        if (answer == RESULT_OK && paid > 0)
            table_put(&entry, &previous);
    }
    if (answer != RESULT_OK)
        grown(growths, stream);
    return answer;
}

/* After the first launch of an executable graph, or that it was brought to the device. */
static void settle_fresh(stream_t meant)
{
    if (!FAULT(graph_memory_uncharged) && atomic_load_explicit(&fresh, memory_order_relaxed) &&
        !stream_capturing(meant)) {
        atomic_store(&fresh, false);
        uncounted_settle(device_current());
    }
}

/* A launch takes what the graph's allocations need, unless its pool has it idle. In a capture it is a node. */
static result_t launch_with_memory(typeof(&FUNCTION(GraphLaunch)) real, TYPE(graphExec) exec, stream_t meant,
                                   stream_t stream)
{
    struct growths growths;
    bool takes = atomic_load_explicit(&with_memory, memory_order_relaxed) > 0 && !stream_capturing(meant);
    result_t answer = takes ? grow(&growths, exec, meant) : RESULT_OK;
    if (answer != RESULT_OK)
        return answer;
    answer = real(exec, stream);
    if (takes)
        grown(&growths, meant);
    settle_fresh(meant); /* when nothing of this call is charged that the device does not have */
    return answer;
}

result_t launch_graph(result_t (*real)(TYPE(graphExec), stream_t), stream_t none, TYPE(graphExec) exec, stream_t stream)
{
    stream_t meant = stream == NULL ? none : stream;
    struct launch_ticket ticket;
    if (launch_is_free() || launch_look())
        return launch_with_memory(real, exec, meant, stream);
    result_t answer = launch_enter(&ticket, meant);
    if (answer != RESULT_OK)
        return answer;
    answer = launch_with_memory(real, exec, meant, stream);
    launch_leave(&ticket, answer);
    return answer;
}
