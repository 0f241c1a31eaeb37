/* HIP's names for the types and values that the bodies of ../shared use. */
#ifndef HETERO_HIP_TYPES_H
#define HETERO_HIP_TYPES_H

#include "abi.h"

#include <stdbool.h>

typedef hipError_t result_t;
typedef hipStream_t stream_t;
typedef hipDevice_t device_t;
typedef int device_count_t;
typedef hipEvent_t event_t;
typedef void *context_t, *pointer_t;

#define FUNCTION(name) hip##name
#define TYPE(name)     hip_##name
#define VALUE(name)    HIP_##name
#define NAMED(name)    HIP_##name
#define ERROR(name)    HIP_ERROR_##name

#define OUTPUT_TYPES(output)                                                                                           \
    output(void *) output(hipArray_t) output(hipMipmappedArray_t) output(hipMemPool_t)                                 \
        output(hipMemGenericAllocationHandle_t) output(hipModule_t) output(hipLibrary_t) output(hipPitchedPtr)

/* A device's ordinal + 1 stands for its context. */
#define CONTEXT_OF(ordinal) ((context_t)(intptr_t)((ordinal) + 1))
#define ORDINAL_OF(context) ((int)(intptr_t)(context) - 1)

/* HIP's names where CUDA's differ by more than the prefix. */
#define hipDeviceGetCount        hipGetDeviceCount
#define hipEventCreate           hipEventCreateWithFlags
#define hipEventDestroy_v2       hipEventDestroy
#define hipDeviceTotalMem_v2     hipDeviceTotalMem
#define hipMemAlloc_v2           hipMalloc
#define hipMemFree_v2            hipFree
#define hipMemFreeAsync          hipFreeAsync
#define hipMemAllocFromPoolAsync hipMallocFromPoolAsync
#define hipMemAllocManaged       hipMallocManaged
#define hipDeviceGetUuid_v2      hipDeviceGetUuid
typedef int hip_memAllocationHandleType, hip_memRangeHandleType, hip_jit_option, hip_libraryOption;
typedef int hip_driverProcAddressQueryResult;
typedef hipUUID hip_uuid;
typedef hipStreamCaptureMode hip_streamCaptureMode;
typedef hipStreamCaptureStatus hip_streamCaptureStatus;
typedef hipGraph_t hip_graph;
typedef hipArray_t hip_array;
typedef hipMipmappedArray_t hip_mipmappedArray;
typedef hipMemPool_t hip_memoryPool;
typedef hipMemPoolAttr hip_memPoolAttr;
typedef hipIpcMemHandle_t hip_ipcMemHandle;
typedef hipIpcEventHandle_t hip_ipcEventHandle;
typedef hipMemGenericAllocationHandle_t hip_memGenericAllocationHandle;
typedef hipMemAllocationProp hip_memAllocationProp;
typedef void *hip_externalMemory, *hip_kernel;
typedef void hip_memPoolPtrExportData, HIP_EXTERNAL_MEMORY_HANDLE_DESC, hip_graphNode, hip_graphEdgeData;
typedef hipModule_t hip_module;
typedef hipLibrary_t hip_library;
typedef hipFunction_t hip_function;
typedef hipLaunchParams HIP_LAUNCH_PARAMS;
typedef hipGraphNodeParams HIP_GRAPH_NODE_PARAMS;
#define HIP_STREAM_CAPTURE_MODE_RELAXED       hipStreamCaptureModeRelaxed
#define HIP_STREAM_CAPTURE_STATUS_NONE        hipStreamCaptureStatusNone
#define HIP_GRAPH_NODE_TYPE_MEM_ALLOC         hipGraphNodeTypeMemAlloc
#define HIP_EVENT_DISABLE_TIMING              hipEventDisableTiming
#define HIP_MEM_ATTACH_GLOBAL                 1 /* hipMemAttachGlobal */
#define HIP_MEM_LOCATION_TYPE_DEVICE          hipMemLocationTypeDevice
#define HIP_MEM_LOCATION_TYPE_HOST_NUMA       3
#define HIP_MEMPOOL_ATTR_RESERVED_MEM_CURRENT hipMemPoolAttrReservedMemCurrent
#define HIP_MEMPOOL_ATTR_USED_MEM_CURRENT     hipMemPoolAttrUsedMemCurrent
#define HIP_ERROR_OUT_OF_MEMORY               hipErrorOutOfMemory
#define HIP_ERROR_INVALID_VALUE               hipErrorInvalidValue
#define HIP_ERROR_NOT_FOUND                   hipErrorInvalidValue /* the error code for an unknown name */
#define HIP_ERROR_NOT_PERMITTED               hipErrorNotSupported
#define HIP_ERROR_NOT_SUPPORTED               hipErrorNotSupported
#define HIP_ERROR_INVALID_HANDLE              hipErrorInvalidHandle
#define HIP_ERROR_NOT_READY                   hipErrorNotReady
#define HIP_ERROR_STREAM_CAPTURE_UNSUPPORTED  hipErrorStreamCaptureUnsupported
#define HIP_ERROR_CAPTURED_EVENT              hipErrorCapturedEvent

/* Properties of the runtime that the bodies test; features.mk chooses whole bodies. */
#define CALLS_NEST           1 /* hipMemAllocPitch calls hipMallocPitch */
#define ANY_CALL_IS_FIRST    1
#define CONTEXTS_HAVE_BLOCKS 0 /* blocks.h */
#define BLOCKS_ARE_KEPT      1
#define MANAGED_IN_BATCHES   0
#define FREES_WAIT           1 /* a stream-ordered free of memory of no pool waits for the stream, as in the runtime */
#define UUID_IS_TEXT         1 /* the sixteen digits of the card's unique id */

/* The sizes in which it takes memory, in bytes. */
#define SUBALLOCATED_BELOW   (BLOCK_BYTES + 1) /* blocks.h */
#define ARRAYS_SHARE_UP_TO   0
#define PITCH_STEP           256u
#define VIRTUAL_TAKES(bytes) (((bytes) + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES)

#define MIPMAP_SHAPE         HIP_ARRAY3D_DESCRIPTOR
#define LAUNCH_COUNT         int
#define LAUNCHED_FUNCTION    hipFunctionLaunchParams
#define DRIVER_NAMES         "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libgalaxyhip.so.5"
#define FUNCTION_PREFIX      "hip"
#define VISIBLE_DEVICES      "" /* several variables choose devices, by their numbers in the driver */
#define FUNCTION_VARIANTS    "_spt"
#define RESULT_OK            hipSuccess
#define RESULT_NOT_PERMITTED hipErrorNotSupported
#define RESULT_NO_FUNCTION   hipErrorNotSupported
#define STREAM_LEGACY        hipStreamLegacy
#define STREAM_PER_THREAD    hipStreamPerThread
#define STREAM_NAMED(stream) ((stream) == STREAM_LEGACY ? NULL : (stream)) /* to runtimes of all ages */

#include "../shared/calls.h"

#endif
