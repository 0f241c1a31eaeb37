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
static pthread_mutex_t limits_mutex = PTHREAD_MUTEX_INITIALIZER;

void limits_after_fork(void)
{
    limits_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* What a buffer takes beyond what the context had of it by itself. */
static uint64_t extra_bytes(int device, TYPE(limit) limit, uint64_t value, uint64_t built_in)
{
    uint64_t bytes;
    if (value <= built_in)
        return 0;
    if (limit != VALUE(LIMIT_STACK_SIZE))
        return value > UINT64_MAX - 2 * BLOCK ? UINT64_MAX : block_bytes_of(value) + BLOCK;
    bool overflows = __builtin_mul_overflow(value - built_in, threads_of(device), &bytes);
    return overflows ? UINT64_MAX : block_bytes_of(bytes);
}

static bool takes_memory(TYPE(limit) limit)
{
    return limit == VALUE(LIMIT_STACK_SIZE) || limit == VALUE(LIMIT_PRINTF_FIFO_SIZE) ||
           limit == VALUE(LIMIT_MALLOC_HEAP_SIZE);
}

/* With `setting` held: charge what is added, ask, and give back what is not held after that. */
static result_t set_and_charge(result_t (*real)(TYPE(limit), size_t), TYPE(limit) limit, size_t value,
                               struct entry *entry)
{
    uint64_t bytes = extra_bytes(entry->device, limit, value, (uint64_t)(uintptr_t)entry->link),
             old_bytes = entry->bytes;
    result_t answer = bytes > old_bytes ? charge(entry->device, bytes - old_bytes) : RESULT_OK;
    if (answer != RESULT_OK)
        return answer;
    answer = real(limit, value);
    if (answer == RESULT_OK)
        entry->bytes = bytes;
    else if (bytes > old_bytes)
        refund(entry->device, bytes - old_bytes);
    if (answer == RESULT_OK && bytes < old_bytes)
        refund(entry->device, old_bytes - bytes);
    return answer;
}

/* With `setting` held: what is charged for a limit of a context; nothing, the first time. */
static struct entry limit_entry_of(context_t context, TYPE(limit) limit, int device)
{
    struct entry entry;
    size_t built_in = 0;
    if (table_get(CONTEXT_LIMIT + (uint32_t)limit, (uintptr_t)context, &entry))
        return entry;
    DRIVER(CtxGetLimit)(&built_in, limit);
    return (struct entry){.key = (uintptr_t)context,
                          .kind = CONTEXT_LIMIT + (uint32_t)limit,
                          .device = device,
                          .owner = context,
                          .link = (void *)(uintptr_t)built_in};
}

result_t set_limit(result_t (*real)(TYPE(limit), size_t), TYPE(limit) limit, size_t value)
{
    int device = device_current();
    result_t charge_result = charge(device, 0);
    if (charge_result != RESULT_OK || !counted(device) || !takes_memory(limit))
        return charge_result != RESULT_OK ? charge_result : real(limit, value);
    if (FAULT(context_limits_uncharged))
        return real(limit, value);
    pthread_mutex_lock(&limits_mutex);
    struct entry previous, entry = limit_entry_of(context_of_memory(), limit, device);
    result_t answer = set_and_charge(real, limit, value, &entry);
    if (answer == RESULT_OK)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&limits_mutex);
    return answer;
}
