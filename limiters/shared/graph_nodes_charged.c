/* What the driver keeps on a device for the nodes of executable graphs is charged before they are made, to their
 * context: it keeps what destroyed ones had for the next.
 */
#include "graph_nodes.h"

#include "blocks.h"
#include "charge.h"
#include "device.h"
#include "graph_size.h"

#include <pthread.h>

/* Held around charges, so that what one executable graph leaves is charged once. */
static pthread_mutex_t paying = PTHREAD_MUTEX_INITIALIZER;

void nodes_after_fork(void)
{
    paying = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* A context's entry: what is charged, and in `link` what the graphs take that it has now. */
static struct entry nodes_of(const void *context)
{
    struct entry entry = {.kind = HELD_NODES, .key = (uintptr_t)context, .owner = (void *)(uintptr_t)context};
    table_get(HELD_NODES, entry.key, &entry);
    return entry;
}

static void live(struct entry *of, uint64_t more, uint64_t less)
{
    struct entry previous;
    of->link = (void *)((uintptr_t)of->link + more - less);
    table_put(of, &previous);
}

/* With `paying` held. The first block is part of the context, as of other small memory. */
static result_t charge_in(const void *context, int device, uint64_t bytes)
{
    struct entry entry = nodes_of(context);
    uint64_t blocks = blocks_for((uintptr_t)entry.link + bytes);
    uint64_t wanted = blocks > BLOCK ? blocks - BLOCK : 0, more = wanted > entry.bytes ? wanted - entry.bytes : 0;
    result_t answer = more > 0 ? charge(device, more) : RESULT_OK;
    if (answer != RESULT_OK)
        return answer;
    entry.device = device;
    entry.bytes += more;
    live(&entry, bytes, 0);
    return RESULT_OK;
}

/* With `paying` held: what was charged stays, as the driver keeps what it took. */
static void less_in(const void *context, uint64_t bytes)
{
    struct entry entry = nodes_of(context);
    if ((uintptr_t)entry.link >= bytes && bytes > 0)
        live(&entry, 0, bytes);
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
    uint64_t all = graph_size(graph);
    if (all <= *bytes)
        return RESULT_OK;
    pthread_mutex_lock(&paying);
    result_t answer = charge_in(context, device, all - *bytes);
    if (answer != RESULT_OK)
        less_in(context, *bytes);
    pthread_mutex_unlock(&paying);
    *bytes = answer == RESULT_OK ? all : 0;
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
    pthread_mutex_lock(&paying);
    less_in(context, bytes);
    pthread_mutex_unlock(&paying);
}

result_t nodes_brought_up(TYPE(graphExec) exec, TYPE(graph) graph)
{
    struct entry entry, previous;
    result_t answer = RESULT_OK;
    if (!table_get(NODES_OF_EXEC, (uintptr_t)exec, &entry))
        return RESULT_OK;
    uint64_t all = graph_size(graph);
    if (all <= entry.bytes)
        return RESULT_OK;
    pthread_mutex_lock(&paying);
    answer = charge_in(entry.owner, nodes_of(entry.owner).device, all - entry.bytes);
    entry.bytes = all;
    if (answer == RESULT_OK)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&paying);
    return answer;
}

void nodes_over(TYPE(graphExec) exec)
{
    struct entry entry;
    if (!table_take(NODES_OF_EXEC, (uintptr_t)exec, &entry))
        return;
    pthread_mutex_lock(&paying);
    less_in(entry.owner, entry.bytes);
    pthread_mutex_unlock(&paying);
}
