/* Charges a context for the nodes of its executable graphs, before they are made. The context keeps the memory of
 * destroyed ones for the next.
 */
#include "graph_nodes.h"

#include "blocks.h"
#include "charge.h"
#include "device.h"
#include "graph_size.h"

#include <pthread.h>

/* Held around charges, so that memory of a destroyed executable graph is used for one other only. */
static pthread_mutex_t nodes_mutex = PTHREAD_MUTEX_INITIALIZER;

void nodes_after_fork(void)
{
    nodes_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* A context's entry: its charged bytes, and in second_bytes those that its nodes take now. */
static struct entry nodes_entry_of(const void *context)
{
    struct entry entry = {.kind = HELD_NODES, .key = (uintptr_t)context, .owner = (void *)(uintptr_t)context};
    table_get(HELD_NODES, entry.key, &entry);
    return entry;
}

static void change_live_bytes(struct entry *entry, uint64_t added_bytes, uint64_t removed_bytes)
{
    struct entry previous;
    entry->second_bytes += added_bytes - removed_bytes;
    table_put(entry, &previous);
}

/* With `nodes_mutex` held: charge so many bytes of nodes. The first block is part of the context, as for
 * sub-allocations.
 */
static result_t charge_nodes_in(const void *context, int device, uint64_t bytes)
{
    struct entry entry = nodes_entry_of(context);
    uint64_t block_bytes = block_bytes_of(entry.second_bytes + bytes);
    uint64_t needed_bytes = block_bytes > BLOCK_BYTES ? block_bytes - BLOCK_BYTES : 0,
             growth_bytes = needed_bytes > entry.bytes ? needed_bytes - entry.bytes : 0;
    result_t answer = growth_bytes > 0 ? charge(device, growth_bytes) : RESULT_OK;
    if (answer != RESULT_OK)
        return answer;
    entry.device = device;
    entry.bytes += growth_bytes;
    change_live_bytes(&entry, bytes, 0);
    return RESULT_OK;
}

/* With `nodes_mutex` held: the charge stays, as the driver keeps the memory. */
static void subtract_nodes_in(const void *context, uint64_t bytes)
{
    struct entry entry = nodes_entry_of(context);
    if (entry.second_bytes >= bytes && bytes > 0)
        change_live_bytes(&entry, 0, bytes);
}

result_t nodes_charge(TYPE(graph) graph, uint64_t *bytes)
{
    *bytes = 0;
    return nodes_charge_more(graph, bytes);
}

result_t nodes_charge_more(TYPE(graph) graph, uint64_t *bytes)
{
    context_t context = context_of_memory();
    int device = device_current();
    if (context == NULL || !counted(device))
        return RESULT_OK;
    uint64_t graph_bytes = graph_size(graph);
    if (graph_bytes <= *bytes)
        return RESULT_OK;
    pthread_mutex_lock(&nodes_mutex);
    result_t answer = charge_nodes_in(context, device, graph_bytes - *bytes);
    if (answer != RESULT_OK)
        subtract_nodes_in(context, *bytes);
    pthread_mutex_unlock(&nodes_mutex);
    *bytes = answer == RESULT_OK ? graph_bytes : 0;
    return answer;
}

void nodes_made(result_t answer, const TYPE(graphExec) *exec, uint64_t bytes)
{
    context_t context = context_of_memory();
    struct entry previous;
    if (bytes == 0)
        return;
    if (answer == RESULT_OK)
        table_put(&(struct entry){.kind = NODES_OF_EXEC,
                                  .key = (uintptr_t)*exec,
                                  .device = DEVICE_NONE,
                                  .bytes = bytes,
                                  .owner = context},
                  &previous);
    if (answer == RESULT_OK)
        return;
    pthread_mutex_lock(&nodes_mutex);
    subtract_nodes_in(context, bytes);
    pthread_mutex_unlock(&nodes_mutex);
}

result_t nodes_updated(TYPE(graphExec) exec, TYPE(graph) graph)
{
    struct entry entry, previous;
    result_t answer = RESULT_OK;
    if (!table_get(NODES_OF_EXEC, (uintptr_t)exec, &entry))
        return RESULT_OK;
    uint64_t graph_bytes = graph_size(graph);
    if (graph_bytes <= entry.bytes)
        return RESULT_OK;
    pthread_mutex_lock(&nodes_mutex);
    answer = charge_nodes_in(entry.owner, nodes_entry_of(entry.owner).device, graph_bytes - entry.bytes);
    entry.bytes = graph_bytes;
    if (answer == RESULT_OK)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&nodes_mutex);
    return answer;
}

void nodes_destroyed(TYPE(graphExec) exec)
{
    struct entry entry;
    if (!table_take(NODES_OF_EXEC, (uintptr_t)exec, &entry))
        return;
    pthread_mutex_lock(&nodes_mutex);
    subtract_nodes_in(entry.owner, entry.bytes);
    pthread_mutex_unlock(&nodes_mutex);
}
