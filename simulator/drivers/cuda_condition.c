/* What a stream stands behind besides the card's work: host functions, and values in memory that something else
 * writes. */
#include "driver.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct condition { /* in the list until it is met */
    enum { CONDITION_BOTH, CONDITION_HOST, CONDITION_VALUE } kind;
    uint64_t number, after, also; /* after, also: the conditions that come first, by number; 0: none */
    uint64_t fence;               /* of the card's work before it */
    struct account *account;
    struct work call;
    CUdeviceptr address;
    uint64_t value;
    unsigned size, flags;
    struct condition *next;
};

/* All under driver.lock. */
static struct condition *first, **last = &first; /* oldest first */
static uint64_t numbers;
static unsigned values; /* how many wait for memory, which has to be looked at */

static const long look_period = 1000000; /* ns between looks at the memory that a stream waits for */

static struct condition *add(const struct condition *from)
{
    struct condition *it = malloc(sizeof *it);
    *it = *from;
    it->number = ++numbers;
    it->next = NULL;
    *last = it;
    last = &it->next;
    values += it->kind == CONDITION_VALUE;
    return it;
}

static void drop(struct condition *it)
{
    struct condition **link = &first;
    while (*link != it)
        link = &(*link)->next;
    *link = it->next;
    if (last == &it->next)
        last = link;
    values -= it->kind == CONDITION_VALUE;
    free(it);
    pthread_cond_broadcast(&driver.host_change);
}

/* Memory that is gone holds nobody. */
static bool value_there(const struct condition *it)
{
    uint64_t mask = it->size == 8 ? UINT64_MAX : UINT32_MAX;
    if (memory_check((void *)(uintptr_t)it->address, it->size) != CUDA_SUCCESS)
        return true;
    /* as the device does, in one piece, whatever the program writes there meanwhile */
    const void *there = (const void *)(uintptr_t)it->address;
    uint64_t now = it->size == 8 ? atomic_load((const _Atomic uint64_t *)there)
                                 : atomic_load((const _Atomic uint32_t *)there);
    switch (it->flags & 3) {
    case 0: return ((now - it->value) & mask) <= mask / 2; /* CU_STREAM_WAIT_VALUE_GEQ, of a counter that wraps */
    case 1: return now == it->value;                       /* EQ */
    case 2: return (now & it->value) != 0;                 /* AND */
    default: return (~(now | it->value) & mask) != 0;      /* NOR */
    }
}

bool condition_met(uint64_t number)
{
    struct condition *it = number ? first : NULL;
    while (it && it->number != number)
        it = it->next;
    if (!it)
        return true;
    if (it->kind == CONDITION_HOST || !condition_met(it->after) || !condition_met(it->also))
        return false;
    if (it->kind == CONDITION_VALUE && !value_there(it))
        return false;
    drop(it);
    return true;
}

uint64_t condition_both(uint64_t one, uint64_t other)
{
    if (one == other || condition_met(other))
        return one;
    return condition_met(one) ? other
                              : add(&(struct condition){.kind = CONDITION_BOTH, .after = one, .also = other})->number;
}

/* Until something may have changed. */
static void doze(void)
{
    struct timespec until;
    if (!values) {
        pthread_cond_wait(&driver.host_change, &driver.lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += look_period;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&driver.host_change, &driver.lock, &until);
}

void wait_for(struct device *device, struct position at)
{
    struct account *account = device->account;
    pthread_mutex_unlock(&driver.lock);
    engine_wait(account, at.fence);
    pthread_mutex_lock(&driver.lock);
    while (!condition_met(at.condition))
        doze();
}

bool reached(struct device *device, struct position at)
{
    return condition_met(at.condition) && engine_done(device->account, at.fence);
}

/* The oldest host function whose stream is there but for the card's work. */
static struct condition *next_call(void)
{
    for (struct condition *it = first; it; it = it->next)
        if (it->kind == CONDITION_HOST && condition_met(it->after))
            return it;
    return NULL;
}

/* A thread of its own runs the host functions, one after another, as the driver's does. */
static void *run_host_calls(void *unused)
{
    pthread_mutex_lock(&driver.lock);
    for (;;) {
        struct condition *it = next_call();
        if (!it) {
            doze();
            continue;
        }
        pthread_mutex_unlock(&driver.lock);
        engine_wait(it->account, it->fence);
        if (it->call.host.callback)
            it->call.host.callback(it->call.host.stream, CUDA_SUCCESS, it->call.host.argument);
        else
            it->call.host.call(it->call.host.argument);
        pthread_mutex_lock(&driver.lock);
        drop(it);
    }
    return unused;
}

static void stand_behind(struct stream *stream, struct condition it)
{
    submit(stream, 0);
    it.after = stream->last.condition;
    it.fence = stream->last.fence;
    it.account = stream->context->device->account;
    stream->last.condition = add(&it)->number;
    legacy_follows(stream);
    pthread_cond_broadcast(&driver.host_change);
}

CUresult host_call(struct stream *stream, const struct work *work)
{
    static bool started; /* under driver.lock */
    pthread_t thread;
    if (!started && (pthread_create(&thread, NULL, run_host_calls, NULL) || pthread_detach(thread)))
        return CUDA_ERROR_OPERATING_SYSTEM;
    started = true;
    stand_behind(stream, (struct condition){.kind = CONDITION_HOST, .call = *work});
    return CUDA_SUCCESS;
}

/* Values in memory. */

static CUresult wait_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned flags, unsigned size)
{
    WITH_STREAM(stream, handle);
    if (address % size || memory_check((void *)(uintptr_t)address, size) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_spoil(stream->capture);
    stand_behind(
        stream,
        (struct condition){.kind = CONDITION_VALUE, .address = address, .value = value, .flags = flags, .size = size});
    return CUDA_SUCCESS;
}

/* Written when the call is made, as all data is. */
static CUresult write_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned size)
{
    WITH_STREAM(stream, handle);
    if (address % size || memory_check((void *)(uintptr_t)address, size) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_spoil(stream->capture);
    memcpy((void *)(uintptr_t)address, &value, size);
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
