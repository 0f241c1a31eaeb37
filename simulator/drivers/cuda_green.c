/* Green contexts: part of a device's multiprocessors. What they are charged is simulated. Their work is not limited
 * to those multiprocessors. */
#include "driver.h"

#include <string.h>

struct resource { /* CUdevResource of cuda.h */
    int type;
    char internal[92];
    unsigned processors;
    char reserved[44];
};
_Static_assert(sizeof(struct resource) == 144, "as in cuda.h");
enum { PROCESSORS = 1 };

struct processors { /* what a description is of */
    struct object object;
    unsigned count;
};

EXPORT CUresult cuDeviceGetDevResource(CUdevice ordinal, struct resource *resource, int type)
{
    WITH_DEVICE(device, ordinal);
    if (!resource || type != PROCESSORS)
        return CUDA_ERROR_INVALID_VALUE;
    *resource = (struct resource){.type = PROCESSORS, .processors = multiprocessors(device)};
    return CUDA_SUCCESS;
}

/* As many groups of min_processors multiprocessors as the caller asks for, or as fit. */
EXPORT CUresult cuDevSmResourceSplitByCount(struct resource *groups, unsigned *count, const struct resource *input,
                                            struct resource *remaining, unsigned flags, unsigned min_processors)
{
    if (!count || !input || input->type != PROCESSORS || flags)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned group_processors = min_processors < input->processors && min_processors ? min_processors
                                                                                     : input->processors,
             max_groups = input->processors / group_processors;
    *count = groups && *count < max_groups ? *count : max_groups;
    for (unsigned i = 0; groups && i < *count; i++)
        groups[i] = (struct resource){.type = PROCESSORS, .processors = group_processors};
    if (remaining)
        *remaining = (struct resource){.type = PROCESSORS, .processors = input->processors - *count * group_processors};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, struct resource *resources, unsigned count)
{
    LOCKED;
    if (!description || !resources || count != 1 || resources->type != PROCESSORS || !resources->processors)
        return CUDA_ERROR_INVALID_VALUE;
    struct processors *processors = object_new(OBJECT_PROCESSORS);
    processors->count = resources->processors;
    *description = (CUdevResourceDesc)processors;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc description, CUdevice ordinal, unsigned flags)
{
    WITH_DEVICE(device, ordinal);
    const struct processors *processors = object_find(description, OBJECT_PROCESSORS);
    if (!handle || !processors || flags != 1) /* with a default stream */
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(primary_retain(device));
    if (!engine_charge(device->account, GREEN)) {
        primary_release(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct green *green = object_new(OBJECT_GREEN);
    green->primary = device->primary;
    green->multiprocessor_count = processors->count;
    *handle = (CUgreenCtx)green;
    return CUDA_SUCCESS;
}

void greens_leave(const struct context *primary)
{
    for (struct green *green = NULL; (green = object_next(green, OBJECT_GREEN));)
        if (green->primary == primary) {
            engine_release(primary->device->account, GREEN);
            green->primary = NULL;
        }
}

#define WITH_GREEN(name, handle)                                                                                       \
    LOCKED;                                                                                                            \
    struct green *name = object_find(handle, OBJECT_GREEN);                                                            \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_CONTEXT

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    WITH_GREEN(green, handle);
    struct context *primary = green->primary;
    object_free(green);
    if (!primary)
        return CUDA_SUCCESS;
    engine_release(primary->device->account, GREEN);
    return primary_release(primary->device);
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx handle)
{
    WITH_GREEN(green, handle);
    NEEDS(context);
    *context = (CUcontext)green;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx handle, unsigned flags, int priority)
{
    CUcontext popped;
    if (!(flags & CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(cuCtxPushCurrent_v2((CUcontext)handle));
    CUresult answer = cuStreamCreateWithPriority(stream, flags, priority);
    cuCtxPopCurrent_v2(&popped);
    return answer;
}
