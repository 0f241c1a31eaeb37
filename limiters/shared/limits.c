/* Buffers of a context whose size the program sets: the stacks of its threads, the heap of device code, printf's queue.
 *
 * Measured on an NVIDIA H100 (driver 580.159.04, 2026-11-23): stacks are taken at once, for every thread that the
 * device can hold (4096 bytes in place of 1024 took 132 x 2048 x 3072), the heap and 2 MiB with the first kernel that
 * uses it, the queue with the first module that does. What a context has of them by itself is part of it.
 */
#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"

#include <pthread.h>

/* Held around a call, so that what is charged is what the driver has. */
static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER;

void limits_after_fork(void)
{
    setting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* What a buffer takes beyond what the context had of it by itself. */
static uint64_t taken(int device, TYPE(limit) limit, uint64_t value, uint64_t first)
{
    uint64_t bytes;
    if (value <= first)
        return 0;
    if (limit != VALUE(LIMIT_STACK_SIZE))
        return value > UINT64_MAX - 2 * BLOCK ? UINT64_MAX : blocks_for(value) + BLOCK;
    bool over = __builtin_mul_overflow(value - first, threads_of(device), &bytes);
    return over ? UINT64_MAX : blocks_for(bytes);
}

static bool takes_memory(TYPE(limit) limit)
{
    return limit == VALUE(LIMIT_STACK_SIZE) || limit == VALUE(LIMIT_PRINTF_FIFO_SIZE) ||
           limit == VALUE(LIMIT_MALLOC_HEAP_SIZE);
}

/* With `setting` held: charge what is added, ask, and give back what is not held after that. */
static result_t set(result_t (*real)(TYPE(limit), size_t), TYPE(limit) limit, size_t value, struct entry *entry)
{
    uint64_t bytes = taken(entry->device, limit, value, (uint64_t)(uintptr_t)entry->link), had = entry->bytes;
    result_t answer = bytes > had ? charge(entry->device, bytes - had) : RESULT_OK;
    if (answer != RESULT_OK)
        return answer;
    answer = real(limit, value);
    if (answer == RESULT_OK)
        entry->bytes = bytes;
    else if (bytes > had)
        refund(entry->device, bytes - had);
    if (answer == RESULT_OK && bytes < had)
        refund(entry->device, had - bytes);
    return answer;
}

/* With `setting` held: what is charged for a limit of a context; nothing, the first time. */
static struct entry entry_of(context_t context, TYPE(limit) limit, int device)
{
    struct entry entry;
    size_t first = 0;
    if (table_get(CONTEXT_LIMIT + (uint32_t)limit, (uintptr_t)context, &entry))
        return entry;
    DRIVER(CtxGetLimit)(&first, limit);
    return (struct entry){.key = (uintptr_t)context,
                          .kind = CONTEXT_LIMIT + (uint32_t)limit,
                          .device = device,
                          .owner = context,
                          .link = (void *)(uintptr_t)first};
}

result_t set_limit(result_t (*real)(TYPE(limit), size_t), TYPE(limit) limit, size_t value)
{
    int device = device_current();
    result_t refused = charge(device, 0);
    if (refused != RESULT_OK || !counted(device) || !takes_memory(limit))
        return refused != RESULT_OK ? refused : real(limit, value);
    if (FAULT(context_limits_uncharged))
        return real(limit, value);
    pthread_mutex_lock(&setting);
    struct entry previous, entry = entry_of(context_of_memory(), limit, device);
    result_t answer = set(real, limit, value, &entry);
    if (answer == RESULT_OK)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&setting);
    return answer;
}
