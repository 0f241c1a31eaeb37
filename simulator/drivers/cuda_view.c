/* Textures and surfaces: only their memory is simulated. A context is charged a block for each 32,768 of them, and
 * keeps it. An H100 takes 42 and 63 bytes for one. */
#include "driver.h"

#define VIEW_BYTES 64u

static CUresult view_new(unsigned long long *handle, const void *resource)
{
    static unsigned long long view_number;
    LOCKED;
    WITH_CONTEXT(context);
    if (!handle || !resource)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = context->view_count * VIEW_BYTES / BLOCK * BLOCK;
    if (bytes > context->view_bytes && !engine_charge(context->device->account, bytes - context->view_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->view_bytes = bytes > context->view_bytes ? bytes : context->view_bytes;
    context->view_count++;
    *handle = ++view_number;
    return CUDA_SUCCESS;
}

static CUresult view_free(unsigned long long handle)
{
    LOCKED;
    WITH_CONTEXT(context);
    if (!handle || !context->view_count)
        return CUDA_ERROR_INVALID_VALUE;
    context->view_count--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTexObjectCreate(CUtexObject *handle, const CUDA_RESOURCE_DESC *resource,
                                  const CUDA_TEXTURE_DESC *description, const CUDA_RESOURCE_VIEW_DESC *view)
{
    (void)description, (void)view;
    return view_new(handle, resource);
}

EXPORT CUresult cuTexObjectDestroy(CUtexObject handle)
{
    return view_free(handle);
}

EXPORT CUresult cuSurfObjectCreate(CUsurfObject *handle, const CUDA_RESOURCE_DESC *resource)
{
    return view_new(handle, resource);
}

EXPORT CUresult cuSurfObjectDestroy(CUsurfObject handle)
{
    return view_free(handle);
}
