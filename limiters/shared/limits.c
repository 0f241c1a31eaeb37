/* Charges buffers of a context whose size the program sets: the threads' stacks, the heap of device code, printf's
 * queue.
 *
 * Measured on an NVIDIA H100 (driver 580.159.04, 2026-11-23): stacks are allocated at once, for every resident thread
 * (4096 bytes in place of 1024 took 132 x 2048 x 3072). The heap and 2 MiB are allocated with the first kernel that
 * uses the heap, the queue with the first module that uses it. The built-in sizes are part of the context.
 */
#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"

#include "../core/fault.h"

#include <pthread.h>

/* Held around the driver's call, so that the charge and the driver's limit agree. */
static pthread_mutex_t limits_mutex = PTHREAD_MUTEX_INITIALIZER;

void limits_after_fork(void)
{
    limits_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* The bytes that a buffer takes beyond its default size; both sizes are of one thread where it is the stack. A heap or
 * queue is charged whole, with 2 MiB (measured, above). */
static uint64_t extra_bytes(int device, TYPE(limit) limit, uint64_t requested_bytes, uint64_t default_bytes)
{
    uint64_t bytes;
    if (requested_bytes <= default_bytes)
        return 0;
    if (limit != VALUE(LIMIT_STACK_SIZE))
        return requested_bytes > UINT64_MAX - 2 * BLOCK_BYTES ? UINT64_MAX
                                                              : block_bytes_of(requested_bytes) + BLOCK_BYTES;
    bool overflows = __builtin_mul_overflow(requested_bytes - default_bytes, threads_of(device), &bytes);
    return overflows ? UINT64_MAX : block_bytes_of(bytes);
}

static bool takes_memory(TYPE(limit) limit)
{
    return limit == VALUE(LIMIT_STACK_SIZE) || limit == VALUE(LIMIT_PRINTF_FIFO_SIZE) ||
           limit == VALUE(LIMIT_MALLOC_HEAP_SIZE);
}

/* With `limits_mutex` held: charge an increase, call the driver, then give back a decrease or a failed increase. */
static result_t set_and_charge(result_t (*real)(TYPE(limit), size_t), TYPE(limit) limit, size_t value,
                               struct entry *entry)
{
    uint64_t bytes = extra_bytes(entry->device, limit, value, entry->second_bytes), old_bytes = entry->bytes;
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

/* With `limits_mutex` held: the entry of a context's limit; the first time a new one, with nothing charged. */
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
                          .second_bytes = built_in};
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
