/* Copies and fills: bytes are moved on the host, and the card is busy for the time that its bandwidth gives. */
#include "driver.h"

#include <string.h>

uint64_t copy_time(const struct device *device, uint64_t bytes)
{
    return (uint64_t)((double)bytes * 1e9 / (double)device->slot->link_bytes_per_s);
}

void copy_box(const struct copy *copy)
{
    for (size_t slice = 0; slice < copy->depth; slice++)
        for (size_t row = 0; row < copy->height; row++)
            memmove(copy->to.start + slice * copy->to.slice_bytes + row * copy->to.pitch_bytes,
                    copy->from.start + slice * copy->from.slice_bytes + row * copy->from.pitch_bytes, copy->width);
}

void fill_box(const struct fill *fill)
{
    for (size_t y = 0; y < fill->height; y++) {
        char *row = fill->start + y * fill->pitch_bytes;
        if (fill->element_bytes == 1)
            memset(row, (int)fill->value, fill->width);
        else
            for (size_t x = 0; x < fill->width; x++)
                memcpy(row + x * fill->element_bytes, &fill->value, fill->element_bytes);
    }
}

static struct work copy_work(const struct device *device, const struct copy *copy)
{
    return (struct work){.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                         .copy = *copy,
                         .duration_ns = copy_time(device, copy->width * copy->height * copy->depth)};
}

static CUresult on_stream(CUstream handle, bool asynchronous, const struct work *work)
{
    if (!asynchronous)
        return do_now(current_context(), work);
    struct stream *stream = stream_find(handle);
    return stream ? enqueue(stream, work) : CUDA_ERROR_INVALID_HANDLE;
}

enum { TO_DEVICE = 1, FROM_DEVICE = 2 };

static CUresult copy_line(void *to, const void *from, size_t size, int sides, CUstream stream, bool asynchronous)
{
    LOCKED;
    WITH_CONTEXT(context);
    if (!size)
        return CUDA_SUCCESS;
    if (!to || !from)
        return CUDA_ERROR_INVALID_VALUE;
    if (sides & TO_DEVICE)
        CHECK(memory_check(to, size));
    if (sides & FROM_DEVICE)
        CHECK(memory_check(from, size));
    struct work work = copy_work(context->device,
                                 &(struct copy){{to, 0, 0}, {(char *)(uintptr_t)from, 0, 0}, size, 1, 1});
    return on_stream(stream, asynchronous, &work);
}

#define AT(pointer) ((void *)(uintptr_t)(pointer))

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_line(AT(to), AT(from), size, 0, NULL, false); /* either side may be the host's */
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_line(AT(to), AT(from), size, 0, stream, true);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy_line(AT(to), from, size, TO_DEVICE, NULL, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy_line(AT(to), from, size, TO_DEVICE, stream, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy_line(to, AT(from), size, FROM_DEVICE, NULL, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_line(to, AT(from), size, FROM_DEVICE, stream, true);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_line(AT(to), AT(from), size, TO_DEVICE | FROM_DEVICE, NULL, false);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy_line(AT(to), AT(from), size, TO_DEVICE | FROM_DEVICE, stream, true);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                             size_t size)
{
    (void)to_context, (void)from_context; /* one address space */
    return copy_line(AT(to), AT(from), size, TO_DEVICE | FROM_DEVICE, NULL, false);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                  size_t size, CUstream stream)
{
    (void)to_context, (void)from_context;
    return copy_line(AT(to), AT(from), size, TO_DEVICE | FROM_DEVICE, stream, true);
}

/* Boxes. */

static CUresult side_of(struct side *side, CUmemorytype type, const void *host, CUdeviceptr device, CUarray handle,
                        size_t pitch, size_t height, const size_t origin[3], const struct copy *copy)
{
    const struct array *array = type == CU_MEMORYTYPE_ARRAY ? object_find(handle, OBJECT_ARRAY) : NULL;
    if (array) {
        pitch = array->pitch_bytes;
        height = array->shape.Height ? array->shape.Height : 1;
        side->start = array->bytes;
    } else {
        side->start = type == CU_MEMORYTYPE_HOST ? (char *)(uintptr_t)host : AT(device);
    }
    if (!side->start || (unsigned)(type - 1) > 3 || (type == CU_MEMORYTYPE_ARRAY && !array))
        return CUDA_ERROR_INVALID_VALUE;
    if (copy->height > 1 && pitch < copy->width)
        return CUDA_ERROR_INVALID_VALUE;
    side->pitch_bytes = pitch;
    side->slice_bytes = pitch * (height ? height : copy->height);
    side->start += origin[0] + origin[1] * pitch + origin[2] * side->slice_bytes;
    if (type == CU_MEMORYTYPE_DEVICE)
        return memory_check(side->start,
                            copy->width + (copy->height - 1) * pitch + (copy->depth - 1) * side->slice_bytes);
    return CUDA_SUCCESS;
}

CUresult copy_node(const CUDA_MEMCPY3D *parameters, struct device *device, struct work *work)
{
    struct copy copy = {.width = parameters->WidthInBytes, .height = parameters->Height, .depth = parameters->Depth};
    if (!copy.width || !copy.height || !copy.depth)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(side_of(&copy.to, parameters->dstMemoryType, parameters->dstHost, parameters->dstDevice, parameters->dstArray,
                  parameters->dstPitch, parameters->dstHeight,
                  (size_t[]){parameters->dstXInBytes, parameters->dstY, parameters->dstZ}, &copy));
    CHECK(side_of(&copy.from, parameters->srcMemoryType, parameters->srcHost, parameters->srcDevice,
                  parameters->srcArray, parameters->srcPitch, parameters->srcHeight,
                  (size_t[]){parameters->srcXInBytes, parameters->srcY, parameters->srcZ}, &copy));
    *work = copy_work(device, &copy);
    return CUDA_SUCCESS;
}

static CUresult copy_space(const CUDA_MEMCPY3D *copy, CUstream stream, bool asynchronous)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct work work;
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
        return CUDA_SUCCESS;
    CHECK(copy_node(copy, context->device, &work));
    return on_stream(stream, asynchronous, &work);
}

static CUresult copy_plane(const CUDA_MEMCPY2D *copy, CUstream stream, bool asynchronous)
{
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D space = {
        .srcXInBytes = copy->srcXInBytes,
        .srcY = copy->srcY,
        .srcMemoryType = copy->srcMemoryType,
        .srcHost = copy->srcHost,
        .srcDevice = copy->srcDevice,
        .srcArray = copy->srcArray,
        .srcPitch = copy->srcPitch,
        .dstXInBytes = copy->dstXInBytes,
        .dstY = copy->dstY,
        .dstMemoryType = copy->dstMemoryType,
        .dstHost = copy->dstHost,
        .dstDevice = copy->dstDevice,
        .dstArray = copy->dstArray,
        .dstPitch = copy->dstPitch,
        .WidthInBytes = copy->WidthInBytes,
        .Height = copy->Height,
        .Depth = 1,
    };
    return copy_space(&space, stream, asynchronous);
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
    return copy_plane(copy, NULL, false);
}
EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
    return copy_plane(copy, NULL, false);
}
EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    return copy_plane(copy, stream, true);
}

EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
    return copy ? copy_space(copy, NULL, false) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    return copy ? copy_space(copy, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

/* The peer's form has contexts where the plain one has nothing; here there is one address space. */
EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy)
{
    return cuMemcpy3D_v2((const CUDA_MEMCPY3D *)copy);
}

EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
    return cuMemcpy3DAsync_v2((const CUDA_MEMCPY3D *)copy, stream);
}

EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                      CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                      CUstream stream)
{
    (void)attributes, (void)indices, (void)attribute_count; /* hints */
    for (size_t i = 0; i < count; i++)
        CHECK(cuMemcpyAsync(to[i], from[i], sizes[i], stream));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                   size_t *failed, CUstream stream)
{
    CUresult result = cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, indices, attribute_count, stream);
    if (failed && result != CUDA_SUCCESS)
        *failed = SIZE_MAX; /* not one in particular */
    return result;
}

EXPORT CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
                                            CUmemcpyAttributes *attributes, CUstream stream)
{
    (void)attributes; /* hints */
    return cuMemcpyAsync(to, from, size, stream);
}

/* Pages do not move here. The card is busy for the time that moving them would take. */
static CUresult move_pages(CUdeviceptr pointer, size_t size, CUstream stream)
{
    return copy_line(AT(pointer), AT(pointer), size, TO_DEVICE, stream, true);
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t size, CUdevice to, CUstream stream)
{
    (void)to;
    return move_pages(pointer, size, stream);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t size, CUmemLocation to, unsigned flags,
                                      CUstream stream)
{
    (void)to;
    return flags == 0 ? move_pages(pointer, size, stream) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *to,
                                        size_t *indices, size_t locations, unsigned long long flags, CUstream stream)
{
    (void)to, (void)indices;
    if (flags != 0 || count == 0 || locations == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        CHECK(move_pages(pointers[i], sizes[i], stream));
    return CUDA_SUCCESS;
}

/* What pages held need not be moved; the card is as busy as if it were. */
EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *to,
                                                  size_t *indices, size_t locations, unsigned long long flags,
                                                  CUstream stream)
{
    return cuMemPrefetchBatchAsync(pointers, sizes, count, to, indices, locations, flags, stream);
}

static CUresult copy_array(CUarray to, size_t to_offset, CUarray from, size_t from_offset, CUdeviceptr device,
                           void *host, size_t bytes, CUstream stream, bool asynchronous)
{
    CUmemorytype linear_type = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    CUDA_MEMCPY3D space = {
        .srcXInBytes = from ? from_offset : 0,
        .srcMemoryType = from ? CU_MEMORYTYPE_ARRAY : linear_type,
        .srcArray = from,
        .srcDevice = device,
        .srcHost = host,
        .dstXInBytes = to ? to_offset : 0,
        .dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : linear_type,
        .dstArray = to,
        .dstDevice = device,
        .dstHost = host,
        .WidthInBytes = bytes,
        .Height = 1,
        .Depth = 1,
    };
    return copy_space(&space, stream, asynchronous);
}

EXPORT CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t size)
{
    return copy_array(to, offset, NULL, 0, from, NULL, size, NULL, false);
}

EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t size)
{
    return copy_array(NULL, 0, from, offset, to, NULL, size, NULL, false);
}

EXPORT CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t size)
{
    return from ? copy_array(to, offset, NULL, 0, 0, (void *)(uintptr_t)from, size, NULL, false)
                : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t size)
{
    return to ? copy_array(NULL, 0, from, offset, 0, to, size, NULL, false) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t size)
{
    return copy_array(to, to_offset, from, from_offset, 0, NULL, size, NULL, false);
}

EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t size, CUstream stream)
{
    return from ? copy_array(to, offset, NULL, 0, 0, (void *)(uintptr_t)from, size, stream, true)
                : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t size, CUstream stream)
{
    return to ? copy_array(NULL, 0, from, offset, 0, to, size, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

/* Fills. */

CUresult fill_node(const CUDA_MEMSET_NODE_PARAMS *params, struct device *device, struct work *work)
{
    size_t width = params->width * params->elementSize, pitch = params->height > 1 ? params->pitch : width;
    if (!params->width || !params->height || pitch < width || params->dst % params->elementSize)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(memory_check(AT(params->dst), width + (params->height - 1) * pitch));
    *work = (struct work){
        .type = CU_GRAPH_NODE_TYPE_MEMSET,
        .fill = {AT(params->dst), pitch, params->width, params->height, params->value, params->elementSize},
        .duration_ns = copy_time(device, width * params->height),
    };
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
                     CUstream stream, bool asynchronous)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct work work;
    if (!width || !height)
        return CUDA_SUCCESS;
    CHECK(fill_node(&(CUDA_MEMSET_NODE_PARAMS){to, pitch, value, element, width, height}, context->device, &work));
    return on_stream(stream, asynchronous, &work);
}

#define FILLS(bits, type)                                                                                              \
    EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                                     \
    {                                                                                                                  \
        return fill(to, 0, value, bits / 8, count, 1, NULL, false);                                                    \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream)                  \
    {                                                                                                                  \
        return fill(to, 0, value, bits / 8, count, 1, stream, true);                                                   \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)      \
    {                                                                                                                  \
        return fill(to, pitch, value, bits / 8, width, height, NULL, false);                                           \
    }                                                                                                                  \
    EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,    \
                                             CUstream stream)                                                          \
    {                                                                                                                  \
        return fill(to, pitch, value, bits / 8, width, height, stream, true);                                          \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
