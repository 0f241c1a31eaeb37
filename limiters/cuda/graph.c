/* Graphs: the memory that their allocation nodes take of the pool of graphs is charged when they are instantiated, for
 * the first launch, and when they are launched again. What they allocated and did not free outlives them.
 */
#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "launch.h"
#include "pools.h"

#include <stdlib.h>

static bool sum_nodes(CUgraph graph, uint64_t bytes[HETERO_MAX_DEVICES], bool *foreign);

static bool sum_node(CUgraphNode node, uint64_t bytes[HETERO_MAX_DEVICES], bool *foreign)
{
    CUgraphNodeType type;
    CUgraph child;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return false;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS && sum_nodes(child, bytes, foreign);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return true;
    if (REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS)
        return false;
    int device = device_of(params.poolProps.location.id);
    if (device >= 0)
        bytes[device] += params.bytesize;
    *foreign = *foreign || device == DEVICE_FOREIGN;
    return true;
}

/* Add up the allocation nodes of a graph and of its child graphs, per device of the grant. */
static bool sum_nodes(CUgraph graph, uint64_t bytes[HETERO_MAX_DEVICES], bool *foreign)
{
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return count == 0;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    bool read = nodes != NULL && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS;
    for (size_t i = 0; read && i < count; i++)
        read = sum_node(nodes[i], bytes, foreign);
    free(nodes);
    return read;
}

struct bill {
    uint64_t bytes[HETERO_MAX_DEVICES];
};

/* What an entry links to whose first launch is charged already. */
static char prepaid;

static _Atomic unsigned with_memory; /* executable graphs, one for each device that they take memory of */

static void refund_bill(const struct bill *bill)
{
    for (int d = 0; d < (int)HETERO_MAX_DEVICES; d++)
        refund(d, counted(d) ? pool_chunks(bill->bytes[d]) : 0);
}

static CUresult charge_graph(CUgraph graph, struct bill *bill)
{
    bool foreign = false;
    struct bill wanted = {0};
    *bill = (struct bill){0};
    if (tenancy() == TENANCY_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (!sum_nodes(graph, wanted.bytes, &foreign)) /* the driver will say what is wrong with the graph */
        return CUDA_SUCCESS;
    CUresult answer = foreign ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (int d = 0; answer == CUDA_SUCCESS && d < (int)HETERO_MAX_DEVICES; d++) {
        if (wanted.bytes[d] == 0 || !counted(d))
            continue;
        answer = pool_remember(POOL_OF_GRAPHS(d), d) == NULL ? CUDA_ERROR_NOT_SUPPORTED
                                                             : charge(d, pool_chunks(wanted.bytes[d]));
        if (answer == CUDA_SUCCESS)
            bill->bytes[d] = wanted.bytes[d];
    }
    if (answer != CUDA_SUCCESS)
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

static CUresult settle_graph(CUresult answer, const CUgraphExec *exec, const struct bill *bill)
{
    struct entry previous;
    if (answer != CUDA_SUCCESS)
        refund_bill(bill);
    for (int d = 0; answer == CUDA_SUCCESS && d < (int)HETERO_MAX_DEVICES; d++) {
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

#define INSTANTIATE(call)                                                                                              \
    do {                                                                                                               \
        struct bill bill;                                                                                              \
        CUresult refused = charge_graph(graph, &bill);                                                                 \
        return refused != CUDA_SUCCESS ? refused : settle_graph(call, exec, &bill);                                    \
    } while (0)

CUresult instantiate_logged(CUresult (*real)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t), CUgraphExec *exec,
                            CUgraph graph, CUgraphNode *error, char *log, size_t log_size)
{
    INSTANTIATE(real(exec, graph, error, log, log_size));
}

CUresult instantiate_flags(CUresult (*real)(CUgraphExec *, CUgraph, unsigned long long), CUgraphExec *exec,
                           CUgraph graph, unsigned long long flags)
{
    INSTANTIATE(real(exec, graph, flags));
}

CUresult instantiate_with(CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *), CUstream none,
                          CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    (void)none;
    INSTANTIATE(real(exec, graph, params));
}

CUresult destroy_exec(CUresult (*real)(CUgraphExec), CUgraphExec exec)
{
    struct entry held[HETERO_MAX_DEVICES], previous;
    bool ours[HETERO_MAX_DEVICES];
    for (uint32_t d = 0; d < HETERO_MAX_DEVICES; d++)
        ours[d] = table_take(HELD_EXEC + d, (uintptr_t)exec, &held[d]);
    CUresult answer = real(exec);
    for (uint32_t d = 0; d < HETERO_MAX_DEVICES; d++) {
        if (ours[d] && answer == CUDA_SUCCESS)
            forget_exec(&held[d]);
        else if (ours[d])
            table_put(&held[d], &previous);
    }
    return answer;
}

/* ------------------------------------------------------------------------------------------------- launches of graphs
 */

/* What the pools of graphs add while this graph is launched. */
struct growths {
    struct growth of[HETERO_MAX_DEVICES];
};

static void grown(struct growths *growths, CUstream stream)
{
    for (int d = (int)HETERO_MAX_DEVICES - 1; d >= 0; d--)
        if (growths->of[d].pool != NULL) {
            pools_used(d, stream);
            pool_grown(&growths->of[d]);
        }
}

static CUresult grow(struct growths *growths, CUgraphExec exec, CUstream stream)
{
    CUresult answer = CUDA_SUCCESS;
    struct entry entry, previous;
    *growths = (struct growths){0};
    for (int d = 0; answer == CUDA_SUCCESS && d < (int)HETERO_MAX_DEVICES; d++) {
        struct pool *pool;
        if (!table_get(HELD_EXEC + (uint32_t)d, (uintptr_t)exec, &entry) ||
            (pool = pool_remember(POOL_OF_GRAPHS(d), d)) == NULL)
            continue;
        uint64_t paid = entry.link == &prepaid ? pool_chunks(entry.bytes) : 0;
        answer = pool_grow(&growths->of[d], pool, entry.bytes, paid, stream);
        if (answer != CUDA_SUCCESS)
            growths->of[d].pool = NULL;
        entry.link = NULL;
        if (answer == CUDA_SUCCESS && paid > 0)
            table_put(&entry, &previous);
    }
    if (answer != CUDA_SUCCESS)
        grown(growths, stream);
    return answer;
}

/* A launch takes what the graph's allocations need, unless its pool has it idle. In a capture it is a node. */
static CUresult launch_with_memory(typeof(&cuGraphLaunch) real, CUgraphExec exec, CUstream meant, CUstream stream)
{
    struct growths growths;
    if (atomic_load_explicit(&with_memory, memory_order_relaxed) == 0 || stream_capturing(meant))
        return real(exec, stream);
    CUresult answer = grow(&growths, exec, meant);
    if (answer != CUDA_SUCCESS)
        return answer;
    answer = real(exec, stream);
    grown(&growths, meant);
    return answer;
}

CUresult launch_graph(CUresult (*real)(CUgraphExec, CUstream), CUstream none, CUgraphExec exec, CUstream stream)
{
    CUstream meant = stream == NULL ? none : stream;
    struct launch_ticket ticket;
    if (launch_is_free() || launch_look())
        return launch_with_memory(real, exec, meant, stream);
    CUresult answer = launch_enter(&ticket, meant);
    if (answer != CUDA_SUCCESS)
        return answer;
    answer = launch_with_memory(real, exec, meant, stream);
    launch_leave(&ticket);
    return answer;
}
