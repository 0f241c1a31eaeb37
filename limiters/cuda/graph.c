/* Graphs: the memory their allocation nodes will take is charged when they are instantiated, because no launch can
 * be refused for memory, and given back after the executable graph is destroyed, as far as the device has it again.
 */
#include "bodies.h"
#include "device.h"
#include "driver.h"
#include "held.h"
#include "pool.h"

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

static void refund_bill(const struct bill *bill)
{
    for (int d = 0; d < (int)HETERO_MAX_DEVICES; d++)
        if (bill->bytes[d] > 0)
            refund_graphs(d, bill->bytes[d]);
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
        if (wanted.bytes[d] == 0)
            continue;
        answer = charge_graphs(d, wanted.bytes[d]);
        if (answer == CUDA_SUCCESS)
            bill->bytes[d] = wanted.bytes[d];
    }
    if (answer != CUDA_SUCCESS)
        refund_bill(bill);
    return answer;
}

static CUresult settle_graph(CUresult answer, const CUgraphExec *exec, const struct bill *bill)
{
    struct entry previous;
    if (answer != CUDA_SUCCESS)
        refund_bill(bill);
    for (int d = 0; answer == CUDA_SUCCESS && d < (int)HETERO_MAX_DEVICES; d++) {
        struct entry entry = {.kind = HELD_EXEC + (uint32_t)d, .key = (uintptr_t)*exec, .bytes = bill->bytes[d]};
        if (entry.bytes > 0 && table_put(&entry, &previous) && previous.kind != 0)
            refund_graphs(d, previous.bytes);
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
        if (ours[d] && answer == CUDA_SUCCESS) {
            refund_graphs((int)d, held[d].bytes);
        } else if (ours[d]) {
            table_put(&held[d], &previous);
        }
    }
    return answer;
}
