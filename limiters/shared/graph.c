/* Charges the memory that allocation nodes of graphs take from the device's pool of graphs. The first launch is charged
 * at the instantiation. Each later launch, or one after an update, is charged when it is made. Memory that a graph
 * allocated and did not free outlives it.
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

/* The memory that a graph's nodes allocate. */
struct graph_needs {
    uint64_t bytes[HETERO_MAX_DEVICES]; /* by device of the grant */
    bool uses_foreign_device;           /* a node allocates on a device that is not in the grant */
};

static bool sum_nodes(TYPE(graph) graph, struct graph_needs *needs);

static bool sum_node(TYPE(graphNode) node, struct graph_needs *needs)
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
    needs->uses_foreign_device = needs->uses_foreign_device || device == DEVICE_FOREIGN;
    return true;
}

/* Add up the nodes of a graph and of its child graphs. */
static bool sum_nodes(TYPE(graph) graph, struct graph_needs *needs)
{
    size_t node_count = 0;
    if (DRIVER(GraphGetNodes)(graph, NULL, &node_count) != RESULT_OK || node_count == 0)
        return node_count == 0;
    TYPE(graphNode) *nodes = malloc(node_count * sizeof *nodes);
    bool is_read = nodes != NULL && DRIVER(GraphGetNodes)(graph, nodes, &node_count) == RESULT_OK;
    for (size_t i = 0; is_read && i < node_count; i++)
        is_read = sum_node(nodes[i], needs);
    free(nodes);
    return is_read;
}

/* The bytes of nodes that are charged for one instantiation. */
struct graph_bill {
    uint64_t bytes[HETERO_MAX_DEVICES]; /* by device of the grant */
};

/* The address that an entry's `link` has while its first launch is charged and not made. */
static char prepaid_tag;

static _Atomic unsigned memory_exec_count; /* pairs of an executable graph and a device on which it allocates */

/* Whether an executable graph was made since the last launch of one. The driver may take memory at its first launch. */
static _Atomic bool has_new_exec;

static void refund_bill(const struct graph_bill *bill)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        refund(device, counted(device) ? pool_chunk_bytes(bill->bytes[device]) : 0);
}

/* Charge bytes that are not on the bill yet. Another thread may add nodes until the driver has made the executable
 * graph. Allocation nodes cannot be removed. */
static result_t charge_graph(TYPE(graph) graph, struct graph_bill *bill)
{
    struct graph_needs needs = {0};
    if (tenancy() == TENANCY_REFUSED)
        return ERROR(NOT_PERMITTED);
    if (!sum_nodes(graph, &needs)) /* the driver will refuse the graph */
        return RESULT_OK;
    result_t answer = needs.uses_foreign_device ? ERROR(OUT_OF_MEMORY) : RESULT_OK;
    for (int device = 0; answer == RESULT_OK && device < (int)HETERO_MAX_DEVICES; device++) {
        if (needs.bytes[device] <= bill->bytes[device] || !counted(device))
            continue;
        uint64_t growth_bytes = pool_chunk_bytes(needs.bytes[device]) - pool_chunk_bytes(bill->bytes[device]);
        answer = pool_countable(POOL_OF_GRAPHS(device), device, POOL_OF_DEVICE) ? charge(device, growth_bytes)
                                                                                : ERROR(NOT_SUPPORTED);
        if (answer == RESULT_OK)
            bill->bytes[device] = needs.bytes[device];
    }
    if (answer != RESULT_OK)
        refund_bill(bill);
    return answer;
}

static void forget_exec(const struct entry *entry)
{
    int device = (int)(entry->kind - HELD_EXEC);
    atomic_fetch_sub(&memory_exec_count, 1);
    if (entry->link == &prepaid_tag)
        refund(device, pool_chunk_bytes(entry->bytes));
    pools_trim(device);
}

static result_t settle_graph(result_t answer, const TYPE(graphExec) *exec, const struct graph_bill *bill)
{
    struct entry previous;
    if (answer != RESULT_OK)
        refund_bill(bill);
    for (int device = 0; answer == RESULT_OK && device < (int)HETERO_MAX_DEVICES; device++) {
        struct entry entry = {.kind = HELD_EXEC + (uint32_t)device,
                              .key = (uintptr_t)*exec,
                              .bytes = bill->bytes[device],
                              .link = &prepaid_tag};
        if (entry.bytes == 0 || !table_put(&entry, &previous))
            continue;
        atomic_fetch_add(&memory_exec_count, 1);
        if (previous.kind != 0)
            forget_exec(&previous);
    }
    return answer;
}

/* No call reports how much device memory the driver keeps for a graph's nodes. If that exceeds the charge and the
 * limit, the executable graph is destroyed. */
static result_t settle_instantiated(result_t answer, const TYPE(graphExec) *exec, const struct graph_bill *bill,
                                    uint64_t node_bytes)
{
    nodes_made(answer, exec, node_bytes);
    answer = settle_graph(answer, exec, bill);
    if (answer != RESULT_OK)
        return answer;
    atomic_store(&has_new_exec, true);
    if (FAULT(graph_memory_uncharged) || uncounted_settle(device_current()))
        return RESULT_OK;
    destroy_exec(DRIVER(GraphExecDestroy), *exec);
    uncounted_settle(device_current());
    return ERROR(OUT_OF_MEMORY);
}

static result_t charge_before(TYPE(graph) graph, struct graph_bill *bill, uint64_t *node_bytes)
{
    result_t answer = charge_graph(graph, bill);
    if (answer == RESULT_OK && (answer = nodes_charge(graph, node_bytes)) != RESULT_OK)
        refund_bill(bill);
    return answer;
}

/* The driver has made the executable graph: charge nodes that were added during the call. */
static result_t charge_again(TYPE(graph) graph, struct graph_bill *bill, uint64_t *node_bytes)
{
    result_t answer = charge_graph(graph, bill);
    if (answer != RESULT_OK)
        nodes_made(answer, NULL, *node_bytes);
    else if ((answer = nodes_charge_more(graph, node_bytes)) != RESULT_OK)
        refund_bill(bill);
    return answer;
}

#define INSTANTIATE(call)                                                                                              \
    do {                                                                                                               \
        struct graph_bill bill = {0};                                                                                  \
        uint64_t node_bytes;                                                                                           \
        if (!FAULT(graph_memory_uncharged) && !uncounted_settle(device_current()))                                     \
            return ERROR(OUT_OF_MEMORY);                                                                               \
        result_t answer = charge_before(graph, &bill, &node_bytes);                                                    \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = call;                                                                                                 \
        if (answer != RESULT_OK || (answer = charge_again(graph, &bill, &node_bytes)) == RESULT_OK)                    \
            return settle_instantiated(answer, exec, &bill, node_bytes);                                               \
        DRIVER(GraphExecDestroy)(*exec);                                                                               \
        return answer;                                                                                                 \
    } while (0)

result_t instantiate_logged(result_t (*real)(TYPE(graphExec) *, TYPE(graph), TYPE(graphNode) *, char *, size_t),
                            TYPE(graphExec) *exec, TYPE(graph) graph, TYPE(graphNode) *error_node, char *log,
                            size_t log_bytes)
{
    INSTANTIATE(real(exec, graph, error_node, log, log_bytes));
}

result_t instantiate_flags(result_t (*real)(TYPE(graphExec) *, TYPE(graph), unsigned long long), TYPE(graphExec) *exec,
                           TYPE(graph) graph, unsigned long long flags)
{
    INSTANTIATE(real(exec, graph, flags));
}

result_t instantiate_with(result_t (*real)(TYPE(graphExec) *, TYPE(graph), NAMED(GRAPH_INSTANTIATE_PARAMS) *),
                          stream_t null_stream, TYPE(graphExec) *exec, TYPE(graph) graph,
                          NAMED(GRAPH_INSTANTIATE_PARAMS) *params)
{
    (void)null_stream;
    INSTANTIATE(real(exec, graph, params));
}

void graphs_after_fork(void)
{
    nodes_after_fork();
}

result_t destroy_exec(result_t (*real)(TYPE(graphExec)), TYPE(graphExec) exec)
{
    struct entry entries[HETERO_MAX_DEVICES], previous;
    bool is_held[HETERO_MAX_DEVICES];
    for (uint32_t device = 0; device < HETERO_MAX_DEVICES; device++)
        is_held[device] = table_take(HELD_EXEC + device, (uintptr_t)exec, &entries[device]);
    nodes_destroyed(exec);
    result_t answer = real(exec);
    for (uint32_t device = 0; device < HETERO_MAX_DEVICES; device++) {
        if (is_held[device] && answer == RESULT_OK)
            forget_exec(&entries[device]);
        else if (is_held[device])
            table_put(&entries[device], &previous);
    }
    uncounted_check_rarely(device_current());
    return answer;
}

/* An update keeps the types of nodes: if no executable graph has memory, none gets any. Memory on a foreign device
 * counts as more than any limit. */
result_t graph_updated(result_t answer, TYPE(graphExec) exec, TYPE(graph) graph, bool is_whole_graph)
{
    struct graph_needs needs = {0};
    struct entry entry, previous;
    if (answer != RESULT_OK || FAULT(graph_updates_uncharged) || atomic_load(&memory_exec_count) == 0 ||
        !sum_nodes(graph, &needs))
        return answer;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        bool had_memory = table_get(HELD_EXEC + (uint32_t)device, (uintptr_t)exec, &entry);
        uint64_t bytes = needs.uses_foreign_device
                             ? UINT64_MAX
                             : needs.bytes[device] + (had_memory && !is_whole_graph ? entry.bytes : 0);
        if (!counted(device) || (bytes == 0 && !had_memory) ||
            !table_put(&(struct entry){.kind = HELD_EXEC + (uint32_t)device, .key = (uintptr_t)exec, .bytes = bytes},
                       &previous))
            continue;
        atomic_fetch_add(&memory_exec_count, 1);
        if (previous.kind != 0)
            forget_exec(&previous);
    }
    return answer;
}

/* ------------------------------------------------------------------------------------------------- launches of graphs
 */

/* The growth of each device's pool of graphs by one launch; its `pool` is NULL where there is none. */
struct growths {
    struct growth by_device[HETERO_MAX_DEVICES];
};

static void settle_growths(struct growths *growths, stream_t stream)
{
    for (int device = (int)HETERO_MAX_DEVICES - 1; device >= 0; device--)
        if (growths->by_device[device].pool != NULL) {
            pools_used(device, stream);
            pool_grown(&growths->by_device[device]);
        }
}

static result_t charge_growths(struct growths *growths, TYPE(graphExec) exec, stream_t stream)
{
    result_t answer = RESULT_OK;
    struct entry entry, previous;
    *growths = (struct growths){0};
    for (int device = 0; answer == RESULT_OK && device < (int)HETERO_MAX_DEVICES; device++) {
        struct pool *pool;
        if (!table_get(HELD_EXEC + (uint32_t)device, (uintptr_t)exec, &entry) ||
            (pool = pool_remember(POOL_OF_GRAPHS(device), device, POOL_OF_DEVICE)) == NULL)
            continue;
        uint64_t prepaid_bytes = entry.link == &prepaid_tag ? pool_chunk_bytes(entry.bytes) : 0;
        answer = pool_grow(&growths->by_device[device], pool, entry.bytes, prepaid_bytes, stream);
        if (answer != RESULT_OK)
            growths->by_device[device].pool = NULL;
        entry.link = NULL;
        if (answer == RESULT_OK && prepaid_bytes > 0)
            table_put(&entry, &previous);
    }
    if (answer != RESULT_OK)
        settle_growths(growths, stream);
    return answer;
}

/* After a launch that may be an executable graph's first, or after its upload: charge what the driver took for it. */
static void settle_new_exec(stream_t actual_stream)
{
    if (!FAULT(graph_memory_uncharged) && atomic_load_explicit(&has_new_exec, memory_order_relaxed) &&
        !stream_is_capturing(actual_stream)) {
        atomic_store(&has_new_exec, false);
        uncounted_settle(device_current());
    }
}

/* A launch makes the pool grow by the graph's allocations, unless the pool has them idle. In a capture it is a node. */
static result_t launch_with_memory(typeof(&FUNCTION(GraphLaunch)) real, TYPE(graphExec) exec, stream_t actual_stream,
                                   stream_t stream)
{
    struct growths growths;
    bool takes_memory = atomic_load_explicit(&memory_exec_count, memory_order_relaxed) > 0 &&
                        !stream_is_capturing(actual_stream);
    result_t answer = takes_memory ? charge_growths(&growths, exec, actual_stream) : RESULT_OK;
    if (answer != RESULT_OK)
        return answer;
    answer = real(exec, stream);
    if (takes_memory)
        settle_growths(&growths, actual_stream);
    settle_new_exec(actual_stream); /* last, when all that is charged for this call is on the device */
    return answer;
}

result_t launch_graph(result_t (*real)(TYPE(graphExec), stream_t), stream_t null_stream, TYPE(graphExec) exec,
                      stream_t stream)
{
    stream_t actual_stream = stream == NULL ? null_stream : stream;
    struct launch_ticket ticket;
    if (launch_is_free() || launch_count_devices())
        return launch_with_memory(real, exec, actual_stream, stream);
    gate_makes_graph(exec);
    result_t answer = launch_enter(&ticket, actual_stream);
    if (answer == RESULT_OK) {
        answer = launch_with_memory(real, exec, actual_stream, stream);
        launch_leave(&ticket, answer);
        if (answer == RESULT_OK && ticket.governor != NULL)
            gate_made_graph(&ticket.governor->gate);
    }
    gate_makes_graph(NULL);
    return answer;
}
