/* What the bodies of ../shared call the things of MUSA. */
#ifndef HETERO_MUSA_TYPES_H
#define HETERO_MUSA_TYPES_H

#include "abi.h"

#include <stdbool.h>

typedef MUresult result_t;
typedef MUdevice device_t;
typedef MUcontext context_t;
typedef MUstream stream_t;
typedef MUevent event_t;
typedef MUdeviceptr pointer_t;

#define FUNCTION(name) mu##name
#define TYPE(name)     MU##name
#define VALUE(name)    MU_##name
#define NAMED(name)    MUSA_##name
#define ERROR(name)    MUSA_ERROR_##name

#define MADE_TYPES(made)                                                                                               \
    made(MUdeviceptr) made(void *) made(MUarray) made(MUmipmappedArray) made(MUmemoryPool) made(MUgraphExec)           \
        made(MUcontext) made(MUgreenCtx) made(MUstream) made(MUmodule) made(MUlibrary)
#define CALLS_NEST           1 /* not known, so taken to */
#define ANY_CALL_IS_FIRST    0
#define PIECE_BELOW          (UINT64_C(1) << 20) /* blocks.h */
#define CONTEXTS_HAVE_BLOCKS 1
#define BLOCKS_ARE_KEPT      0
#define MANAGED_IN_BATCHES   1
#define FREES_WAIT           0
#define ARRAYS_SHARE_UP_TO   PIECE_BELOW
#define MIPMAP_SHAPE         const MUSA_ARRAY3D_DESCRIPTOR
#define LAUNCH_COUNT         unsigned
#define UUID_IS_TEXT         0
#define PITCH_STEP           512u
#define VIRTUAL_TAKES(bytes) (bytes) /* blocks of physical memory are whole ones */
#define DRIVER_NAMES         "libmusa.so.1"
#define FUNCTION_PREFIX      "mu"
#define FUNCTION_VARIANTS    "_ptsz", "_ptds"
#define RESULT_OK            MUSA_SUCCESS
#define RESULT_NOT_PERMITTED MUSA_ERROR_NOT_PERMITTED
#define RESULT_NO_FUNCTION   MUSA_ERROR_NOT_FOUND
#define STREAM_LEGACY        MU_STREAM_LEGACY
#define STREAM_NAMED(stream) (stream)
#define STREAM_PER_THREAD    MU_STREAM_PER_THREAD

#include "../shared/calls.h"

#endif
