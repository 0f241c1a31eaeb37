/* What a stream stands behind besides the card's work: host functions, and values in memory that something else
 * writes. */
#include "driver.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct condition { /* in the list until it is met */
    enum { CONDITION_BOTH, CONDITION_HOST, CONDITION_VALUE } kind;
    uint64_t number, first_awaited,
        second_awaited; /* after, also: the conditions that come first, by number; 0: none */
    uint64_t fence;     /* of the card's work before it */
    struct account *account;
    struct work call;
    CUdeviceptr address;
    uint64_t value;
    unsigned value_bytes, flags;
    struct condition *next;
};

/* All under driver.lock. */
static struct condition *conditions, **conditions_end = &conditions; /* oldest first */
static uint64_t last_number;
static unsigned value_condition_count; /* how many conditions wait for a value in memory, which is polled */

static const long look_period_ns = 1000000; /* ns between polls of the value that a stream waits for */

static struct condition *add_condition(const struct condition *template)
{
    struct condition *condition = malloc(sizeof *condition);
    *condition = *template;
    condition->number = ++last_number;
    condition->next = NULL;
    *conditions_end = condition;
    conditions_end = &condition->next;
    value_condition_count += condition->kind == CONDITION_VALUE;
    return condition;
}

static void remove_condition(struct condition *condition)
{
    struct condition **link = &conditions;
    while (*link != condition)
        link = &(*link)->next;
    *link = condition->next;
    if (conditions_end == &condition->next)
        conditions_end = link;
    value_condition_count -= condition->kind == CONDITION_VALUE;
    free(condition);
    pthread_cond_broadcast(&driver.host_change);
}

/* A condition on memory that was freed is met. */
static bool is_value_met(const struct condition *condition)
{
    uint64_t mask = condition->value_bytes == 8 ? UINT64_MAX : UINT32_MAX;
    if (memory_check((void *)(uintptr_t)condition->address, condition->value_bytes) != CUDA_SUCCESS)
        return true;
    /* as the device does, in one piece, whatever the program writes there meanwhile */
    const void *address = (const void *)(uintptr_t)condition->address;
    uint64_t current = condition->value_bytes == 8 ? atomic_load((const _Atomic uint64_t *)address)
                                                   : atomic_load((const _Atomic uint32_t *)address);
    switch (condition->flags & 3) {
    case 0:
        return ((current - condition->value) & mask) <=
               mask / 2;                                         /* CU_STREAM_WAIT_VALUE_GEQ, of a counter that wraps */
    case 1: return current == condition->value;                  /* EQ */
    case 2: return (current & condition->value) != 0;            /* AND */
    default: return (~(current | condition->value) & mask) != 0; /* NOR */
    }
}

bool condition_met(uint64_t number)
{
    struct condition *condition = number ? conditions : NULL;
    while (condition && condition->number != number)
        condition = condition->next;
    if (!condition)
        return true;
    if (condition->kind == CONDITION_HOST || !condition_met(condition->first_awaited) ||
        !condition_met(condition->second_awaited))
        return false;
    if (condition->kind == CONDITION_VALUE && !is_value_met(condition))
        return false;
    remove_condition(condition);
    return true;
}

uint64_t condition_both(uint64_t first_number, uint64_t second_number)
{
    if (first_number == second_number || condition_met(second_number))
        return first_number;
    return condition_met(first_number) ? second_number
                                       : add_condition(&(struct condition){.kind = CONDITION_BOTH,
                                                                           .first_awaited = first_number,
                                                                           .second_awaited = second_number})
                                             ->number;
}

/* Until something may have changed. */
static void wait_for_change(void)
{
    struct timespec deadline;
    if (!value_condition_count) {
        pthread_cond_wait(&driver.host_change, &driver.lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_nsec += look_period_ns;
    deadline.tv_sec += deadline.tv_nsec / 1000000000;
    deadline.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&driver.host_change, &driver.lock, &deadline);
}

void wait_for(struct device *device, struct position position)
{
    struct account *account = device->account;
    pthread_mutex_unlock(&driver.lock);
    engine_wait(account, position.fence);
    pthread_mutex_lock(&driver.lock);
    while (!condition_met(position.condition_number))
        wait_for_change();
}

bool reached(struct device *device, struct position position)
{
    return condition_met(position.condition_number) && engine_done(device->account, position.fence);
}

/* The oldest host function that waits for nothing but the card's work. */
static struct condition *next_host_call(void)
{
    for (struct condition *condition = conditions; condition; condition = condition->next)
        if (condition->kind == CONDITION_HOST && condition_met(condition->first_awaited))
            return condition;
    return NULL;
}

/* A thread of its own runs the host functions, one after another, as the driver's does. */
static void *run_host_calls(void *unused)
{
    pthread_mutex_lock(&driver.lock);
    for (;;) {
        struct condition *condition = next_host_call();
        if (!condition) {
            wait_for_change();
            continue;
        }
        pthread_mutex_unlock(&driver.lock);
        engine_wait(condition->account, condition->fence);
        if (condition->call.host.callback)
            condition->call.host.callback(condition->call.host.stream, CUDA_SUCCESS, condition->call.host.argument);
        else
            condition->call.host.call(condition->call.host.argument);
        pthread_mutex_lock(&driver.lock);
        remove_condition(condition);
    }
    return unused;
}

static void wait_in_stream(struct stream *stream, struct condition condition)
{
    submit(stream, 0);
    condition.first_awaited = stream->last_position.condition_number;
    condition.fence = stream->last_position.fence;
    condition.account = stream->context->device->account;
    stream->last_position.condition_number = add_condition(&condition)->number;
    legacy_follows(stream);
    pthread_cond_broadcast(&driver.host_change);
}

CUresult host_call(struct stream *stream, const struct work *work)
{
    static bool is_started; /* under driver.lock */
    pthread_t thread;
    if (!is_started && (pthread_create(&thread, NULL, run_host_calls, NULL) || pthread_detach(thread)))
        return CUDA_ERROR_OPERATING_SYSTEM;
    is_started = true;
    wait_in_stream(stream, (struct condition){.kind = CONDITION_HOST, .call = *work});
    return CUDA_SUCCESS;
}

/* Values in memory. */

static CUresult wait_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned flags, unsigned value_bytes)
{
    WITH_STREAM(stream, handle);
    if (address % value_bytes || memory_check((void *)(uintptr_t)address, value_bytes) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_spoil(stream->capture);
    wait_in_stream(
        stream,
        (struct condition){
            .kind = CONDITION_VALUE, .address = address, .value = value, .flags = flags, .value_bytes = value_bytes});
    return CUDA_SUCCESS;
}

/* Written when the call is made, as all data is. */
static CUresult write_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned value_bytes)
{
    WITH_STREAM(stream, handle);
    if (address % value_bytes || memory_check((void *)(uintptr_t)address, value_bytes) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_spoil(stream->capture);
    memcpy((void *)(uintptr_t)address, &value, value_bytes);
    submit(stream, 0);
    pthread_cond_broadcast(&driver.host_change);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    return wait_value(stream, address, value, flags, 4);
}

EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return wait_value(stream, address, value, flags, 8);
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : write_value(stream, address, value, 4);
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : write_value(stream, address, value, 8);
}

EXPORT CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    return cuStreamWaitValue32_v2(stream, address, value, flags);
}

EXPORT CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return cuStreamWaitValue64_v2(stream, address, value, flags);
}

EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    return cuStreamWriteValue32_v2(stream, address, value, flags);
}

EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return cuStreamWriteValue64_v2(stream, address, value, flags);
}
