/* Arrays and mipmapped arrays: opaque memory, kept here as plain rows. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct mipmap {
    struct object object;
    unsigned level_count;
    struct array *arrays[16];
    struct tile *tiles;
};

struct tile {      /* a place in a sparse array that has memory */
    unsigned type; /* of what, and where */
    unsigned long long position[4];
    struct physical *physical;
    struct tile *next;
};

static size_t element_size(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    switch (shape->Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return shape->NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2 * shape->NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4 * shape->NumChannels;
    default: return 0;
    }
}

/* An array's rows are laid out in "gobs" of 8 rows of 64 bytes (NVIDIA's open kernel modules). It is assumed that an
 * array of more than one row is charged whole gobs. */
#define GOB_BYTES 64u
#define GOB_ROWS  8u
static size_t taken_by(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t pitch_bytes)
{
    size_t rows = shape->Height ? round_up(shape->Height, GOB_ROWS) : 1;
    return (shape->Height ? round_up(pitch_bytes, GOB_BYTES) : pitch_bytes) * rows * (shape->Depth ? shape->Depth : 1);
}

static CUresult array_new(const CUDA_ARRAY3D_DESCRIPTOR *shape, struct array **result)
{
    WITH_CONTEXT(context);
    size_t element_bytes = element_size(shape);
    if (!element_bytes || !shape->Width || (shape->NumChannels & (shape->NumChannels - 1)) || shape->NumChannels > 4)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(capture_guard());
    size_t pitch_bytes = shape->Width * element_bytes;
    size_t size_bytes = pitch_bytes * (shape->Height ? shape->Height : 1) * (shape->Depth ? shape->Depth : 1);
    size_t taken_bytes = taken_by(shape, pitch_bytes);
    struct piece piece = {0};
    bool is_mapped_later = shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    bool is_sparse = shape->Flags & CUDA_ARRAY3D_SPARSE;
    if (is_sparse ? !tables_take_sparse(context->device, size_bytes)
                  : !is_mapped_later && !piece_take(context, taken_bytes, taken_bytes <= MIB, &piece))
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *bytes = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) {
        if (piece.block)
            piece_give(&piece);
        if (is_sparse)
            tables_give_sparse(context->device, size_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct array *array = object_new(OBJECT_ARRAY);
    array->context = context;
    array->shape = *shape;
    array->piece = piece;
    array->pitch_bytes = pitch_bytes;
    array->size_bytes = size_bytes;
    array->bytes = bytes;
    *result = array;
    return CUDA_SUCCESS;
}

static void tile_free(struct tile **link)
{
    struct tile *tile = *link;
    *link = tile->next;
    physical_unmap(tile->physical);
    free(tile);
}

static void array_free(struct array *array)
{
    while (array->tiles)
        tile_free(&array->tiles);
    if (array->piece.block)
        piece_give(&array->piece);
    if (array->shape.Flags & CUDA_ARRAY3D_SPARSE)
        tables_give_sparse(array->context->device, array->size_bytes);
    munmap(array->bytes, array->size_bytes);
    object_free(array);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    LOCKED;
    return handle && shape ? array_new(shape, (struct array **)handle) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    return cuArray3DCreate_v2(handle, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
                                                                 .Height = shape->Height,
                                                                 .Format = shape->Format,
                                                                 .NumChannels = shape->NumChannels});
}

#define WITH_ARRAY(name, handle)                                                                                       \
    LOCKED;                                                                                                            \
    struct array *name = object_find(handle, OBJECT_ARRAY);                                                            \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_HANDLE

EXPORT CUresult cuArrayDestroy(CUarray handle)
{
    WITH_ARRAY(array, handle);
    if (array->parent)
        return CUDA_ERROR_INVALID_HANDLE;
    array_free(array);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle)
{
    WITH_ARRAY(array, handle);
    *shape = array->shape;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray handle)
{
    WITH_ARRAY(array, handle);
    *shape = (CUDA_ARRAY_DESCRIPTOR){array->shape.Width, array->shape.Height, array->shape.Format,
                                     array->shape.NumChannels};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray handle, CUdevice ordinal)
{
    WITH_ARRAY(array, handle);
    if (!device_at(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = round_up(array->size_bytes, 512), .alignment = 512};
    return CUDA_SUCCESS;
}

static void mipmap_free(struct mipmap *mipmap)
{
    while (mipmap->tiles)
        tile_free(&mipmap->tiles);
    for (unsigned i = 0; i < mipmap->level_count; i++)
        array_free(mipmap->arrays[i]);
    object_free(mipmap);
}

void arrays_free_of(const struct context *context)
{
    for (struct mipmap *mipmap = NULL; (mipmap = object_next(mipmap, OBJECT_MIPMAP));)
        if (mipmap->arrays[0]->context == context)
            mipmap_free(mipmap);
    for (struct array *array = NULL; (array = object_next(array, OBJECT_ARRAY));)
        if (array->context == context)
            array_free(array);
}

static size_t halved(size_t extent, unsigned halvings)
{
    return !extent ? 0 : extent >> halvings ? extent >> halvings : 1;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    LOCKED;
    if (!handle || !shape || !levels || levels > 16)
        return CUDA_ERROR_INVALID_VALUE;
    struct mipmap *mipmap = object_new(OBJECT_MIPMAP);
    for (; mipmap->level_count < levels; mipmap->level_count++) {
        CUDA_ARRAY3D_DESCRIPTOR level = *shape;
        level.Width = halved(shape->Width, mipmap->level_count);
        level.Height = halved(shape->Height, mipmap->level_count);
        if (!(shape->Flags & CUDA_ARRAY3D_LAYERED)) /* layers are not halved */
            level.Depth = halved(shape->Depth, mipmap->level_count);
        CUresult result = array_new(&level, &mipmap->arrays[mipmap->level_count]);
        if (result != CUDA_SUCCESS) {
            mipmap_free(mipmap);
            return result;
        }
        mipmap->arrays[mipmap->level_count]->parent = mipmap;
    }
    *handle = (CUmipmappedArray)mipmap;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray handle, unsigned level)
{
    LOCKED;
    struct mipmap *mipmap = object_find(handle, OBJECT_MIPMAP);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    if (level >= mipmap->level_count)
        return CUDA_ERROR_INVALID_VALUE;
    *array = (CUarray)mipmap->arrays[level];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
    LOCKED;
    struct mipmap *mipmap = object_find(handle, OBJECT_MIPMAP);
    if (!mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    mipmap_free(mipmap);
    return CUDA_SUCCESS;
}

/* Sparse arrays: they are charged no memory. Memory blocks are mapped into them. */

static struct tile **tiles_of(const CUarrayMapInfo *info)
{
    bool is_mipmapped = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    struct array *array = is_mipmapped ? NULL : object_find(info->resource.array, OBJECT_ARRAY);
    struct mipmap *mipmap = is_mipmapped ? object_find(info->resource.mipmap, OBJECT_MIPMAP) : NULL;
    const struct array *resource = mipmap ? mipmap->arrays[0] : array;
    if (!resource || !(resource->shape.Flags & CUDA_ARRAY3D_SPARSE))
        return NULL;
    return mipmap ? &mipmap->tiles : &array->tiles;
}

/* A place is mapped or unmapped as a whole; what is mapped over loses its reference. */
static CUresult map_tile(const CUarrayMapInfo *info)
{
    struct tile **link = tiles_of(info), *new_tile = NULL;
    bool is_map = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    if (!link || info->flags || (!is_map && info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP))
        return CUDA_ERROR_INVALID_VALUE;
    if (is_map) {
        struct physical *physical = physical_map(info->memHandle.memHandle);
        if (!physical)
            return CUDA_ERROR_INVALID_VALUE;
        new_tile = malloc(sizeof *new_tile);
        *new_tile = (struct tile){.type = info->subresourceType, .physical = physical};
        memcpy(new_tile->position, &info->subresource, sizeof new_tile->position);
    }
    while (*link && (memcmp((*link)->position, &info->subresource, sizeof(*link)->position) != 0 ||
                     (*link)->type != info->subresourceType))
        link = &(*link)->next;
    if (*link)
        tile_free(link);
    if (new_tile) {
        new_tile->next = *link;
        *link = new_tile;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *infos, unsigned count, CUstream handle)
{
    WITH_STREAM(stream, handle);
    if (!infos || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_spoil(stream->capture);
    for (unsigned i = 0; i < count; i++)
        CHECK(map_tile(&infos[i]));
    submit(stream, 0);
    return CUDA_SUCCESS;
}
