/* CUDA's names for the types and values that the bodies of ../shared use. */
#ifndef HETERO_CUDA_TYPES_H
#define HETERO_CUDA_TYPES_H

#include "abi.h"

#include <stdbool.h>

typedef CUresult result_t;
typedef CUdevice device_t;
typedef int device_count_t;
typedef CUcontext context_t;
typedef CUstream stream_t;
typedef CUevent event_t;
typedef CUdeviceptr pointer_t;

#define FUNCTION(name) cu##name
#define TYPE(name)     CU##name
#define VALUE(name)    CU_##name
#define NAMED(name)    CUDA_##name
#define ERROR(name)    CUDA_ERROR_##name

#define OUTPUT_TYPES(output)                                                                                           \
    output(CUdeviceptr) output(void *) output(CUarray) output(CUmipmappedArray) output(CUmemoryPool)                   \
        output(CUgraphExec) output(CUcontext) output(CUgreenCtx) output(CUstream) output(CUmodule) output(CUlibrary)

/* Properties of the driver that the bodies test; features.mk chooses whole bodies. */
#define CALLS_NEST           0 /* the driver's launch functions do not call each other by their exported names */
#define ANY_CALL_IS_FIRST    0
#define CONTEXTS_HAVE_BLOCKS 1 /* blocks.h */
#define BLOCKS_ARE_KEPT      0
#define MANAGED_IN_BATCHES   1
#define FREES_WAIT           0
#define UUID_IS_TEXT         0

/* The sizes in which it takes memory, in bytes. */
#define SUBALLOCATED_BELOW   (UINT64_C(1) << 20) /* blocks.h */
#define ARRAYS_SHARE_UP_TO   SUBALLOCATED_BELOW
#define PITCH_STEP           512u
#define VIRTUAL_TAKES(bytes) (bytes) /* blocks of physical memory are whole ones */

#define MIPMAP_SHAPE         const CUDA_ARRAY3D_DESCRIPTOR
#define LAUNCH_COUNT         unsigned
#define DRIVER_NAMES         "libcuda.so.1"
#define FUNCTION_PREFIX      "cu"
#define VISIBLE_DEVICES      "CUDA_VISIBLE_DEVICES" /* the variable by which a program chooses devices */
#define FUNCTION_VARIANTS    "_ptsz", "_ptds"
#define RESULT_OK            CUDA_SUCCESS
#define RESULT_NOT_PERMITTED CUDA_ERROR_NOT_PERMITTED
#define RESULT_NO_FUNCTION   CUDA_ERROR_NOT_FOUND
#define STREAM_LEGACY        CU_STREAM_LEGACY
#define STREAM_NAMED(stream) (stream)
#define STREAM_PER_THREAD    CU_STREAM_PER_THREAD

#include "../shared/calls.h"

#endif
