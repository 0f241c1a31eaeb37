/* Memory that a context's limits are charged: stacks at once, heap and printf buffer with the first module or kernel
 * that needs them. As an H100 does with driver 580. */
#include "driver.h"

#include <string.h>

/* Those of cuda.h's CUlimit that abi.h has no name for. */
#define LIMIT_SYNC_DEPTH       3 /* not on cards of today */
#define LIMIT_PENDING_LAUNCHES 4
#define LIMIT_L2_FETCH         5
#define LIMIT_PERSISTING_L2    6
#define LIMIT_SHARED_MEMORY    7

static const size_t first_limits[CU_LIMIT_MAX] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 8650752,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608,
    [LIMIT_PENDING_LAUNCHES] = 2048,
    [LIMIT_L2_FETCH] = 64,
    [LIMIT_PERSISTING_L2] = 9830400,
    [LIMIT_SHARED_MEMORY] = 232448,
};

void limits_start(struct context *context)
{
    memcpy(context->limits, first_limits, sizeof first_limits);
}

void limits_end(struct context *context)
{
    engine_release(context->device->account,
                   context->stack_bytes + context->printf_bytes + context->heap_bytes + context->call_bytes);
}

/* A context's printf buffer is made for the first module that prints. */
CUresult limits_need_printf(struct context *context)
{
    uint64_t bytes = round_up(context->limits[CU_LIMIT_PRINTF_FIFO_SIZE], BLOCK);
    if (context->printf_bytes)
        return CUDA_SUCCESS;
    if (!engine_charge(context->device->account, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->printf_bytes = bytes;
    return CUDA_SUCCESS;
}

/* A context's heap is made for the first kernel that allocates, with 2 MiB to keep its books. */
CUresult limits_need_heap(struct context *context)
{
    uint64_t bytes = round_up(context->limits[CU_LIMIT_MALLOC_HEAP_SIZE], BLOCK) + BLOCK;
    if (context->heap_bytes)
        return CUDA_SUCCESS;
    if (!engine_charge(context->device->account, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->heap_bytes = bytes;
    return CUDA_SUCCESS;
}

/* A context has larger stacks from the first module on that calls malloc: 138 MiB when that is loaded on an H100 of 132
 * multiprocessors (driver 580.159.04, 2026-11-27), which is 512 bytes of each thread and 6 MiB. */
CUresult limits_need_calls(struct context *context)
{
    uint64_t threads = (uint64_t)multiprocessors(context->device) * THREADS_PER_MULTIPROCESSOR;
    uint64_t bytes = round_up(threads * 512, BLOCK) + 6 * MIB;
    if (context->call_bytes)
        return CUDA_SUCCESS;
    if (!engine_charge(context->device->account, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->call_bytes = bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    LOCKED;
    WITH_CONTEXT(context);
    NEEDS(value);
    if ((unsigned)limit >= CU_LIMIT_MAX || limit == LIMIT_SYNC_DEPTH)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

/* Every resident thread has a stack. What exceeds the default size is charged and released at once. */
static CUresult set_stack(struct context *context, size_t stack_limit_bytes)
{
    struct device *device = context->device;
    size_t thread_bytes = stack_limit_bytes > context->thread_local_bytes ? stack_limit_bytes
                                                                          : context->thread_local_bytes;
    size_t extra_thread_bytes = thread_bytes > first_limits[CU_LIMIT_STACK_SIZE]
                                    ? thread_bytes - first_limits[CU_LIMIT_STACK_SIZE]
                                    : 0;
    uint64_t bytes, thread_count = (uint64_t)multiprocessors(device) * THREADS_PER_MULTIPROCESSOR;
    if (__builtin_mul_overflow(extra_thread_bytes, thread_count, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > context->stack_bytes && !engine_charge(device->account, bytes - context->stack_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes < context->stack_bytes)
        engine_release(device->account, context->stack_bytes - bytes);
    context->stack_bytes = bytes;
    return CUDA_SUCCESS;
}

/* A kernel whose threads have larger arrays than their stacks makes these larger, with its launch. They stay so. */
CUresult limits_need_local(struct context *context, uint64_t bytes)
{
    uint64_t old_local_bytes = context->thread_local_bytes;
    if (bytes <= old_local_bytes)
        return CUDA_SUCCESS;
    context->thread_local_bytes = bytes;
    CUresult result = set_stack(context, context->limits[CU_LIMIT_STACK_SIZE]);
    if (result != CUDA_SUCCESS)
        context->thread_local_bytes = old_local_bytes;
    return result;
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    LOCKED;
    WITH_CONTEXT(context);
    if ((unsigned)limit >= CU_LIMIT_MAX || limit == LIMIT_SYNC_DEPTH)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if ((limit == CU_LIMIT_PRINTF_FIFO_SIZE && context->printf_bytes) ||
        (limit == CU_LIMIT_MALLOC_HEAP_SIZE && context->heap_bytes))
        return CUDA_ERROR_INVALID_VALUE; /* it is made, and stays as it is */
    if (limit == CU_LIMIT_STACK_SIZE)
        CHECK(set_stack(context, value));
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}
