/* HIP's ABI as the limiter meets it: our own declarations of what libamdhip64.so exports. The public reference is
 * hip_runtime_api.h of ROCm 5.2, and of 6.0 for the names with R0600. tests/limiters compares them with the header
 * where it is installed.
 */
#ifndef HETERO_HIP_ABI_H
#define HETERO_HIP_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorInvalidHandle = 400,
    hipErrorNotReady = 600,
    hipErrorNotSupported = 801,
    hipErrorStreamCaptureUnsupported = 900, /* to hipErrorCapturedEvent: of captures */
    hipErrorCapturedEvent = 907,
} hipError_t;

typedef int hipDevice_t;
typedef void *hipDeviceptr_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipLibrary_t *hipLibrary_t;
typedef int hipJitOption, hipLibraryOption;
typedef struct hipGraph *hipGraph_t;
typedef struct hipGraphExec *hipGraphExec_t;
typedef struct ihipMemPoolHandle_t *hipMemPool_t;
typedef struct hipArray *hipArray_t;
typedef struct hipMipmappedArray *hipMipmappedArray_t;
typedef struct ihipMemGenericAllocationHandle *hipMemGenericAllocationHandle_t;

#define hipStreamLegacy    ((hipStream_t)1) /* since 6.1; before, NULL alone names it */
#define hipStreamPerThread ((hipStream_t)2)

typedef struct {
    char bytes[16]; /* the sixteen digits of the card's unique id, as text */
} hipUUID;

typedef struct {
    uint32_t x, y, z;
} dim3;

typedef enum { hipStreamCaptureModeRelaxed = 2 } hipStreamCaptureMode;
typedef enum { hipStreamCaptureStatusNone = 0 } hipStreamCaptureStatus;
typedef enum { hipMemPoolAttrReservedMemCurrent = 5, hipMemPoolAttrUsedMemCurrent = 7 } hipMemPoolAttr;
typedef int hipMemcpyKind;
#define hipEventDisableTiming 2u

typedef struct {
    size_t width, height, depth;
} hipExtent;

typedef struct {
    void *ptr;
    size_t pitch, xsize, ysize;
} hipPitchedPtr;

typedef struct {
    int x, y, z, w, f;
} hipChannelFormatDesc;

typedef struct {
    size_t Width, Height;
    unsigned Format, NumChannels;
} HIP_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width, Height, Depth;
    unsigned Format, NumChannels, Flags;
} HIP_ARRAY3D_DESCRIPTOR;

typedef struct {
    char reserved[64];
} hipIpcMemHandle_t, hipIpcEventHandle_t;

/* Its totalGlobalMem lies behind the name; in R0600's form behind the UUID and two more members, too. */
typedef struct {
    char name[256];
    size_t totalGlobalMem;
} hipDeviceProp_t;

typedef struct {
    char name[256], uuid[16], luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem;
} hipDeviceProp_tR0600;

typedef struct {
    void *function;
    dim3 grid, block;
    void **arguments;
    size_t shared;
    hipStream_t hStream;
} hipLaunchParams;

typedef struct {
    hipFunction_t function;
    unsigned grid[3], block[3], shared;
    hipStream_t hStream;
    void **arguments;
} hipFunctionLaunchParams;

/* How a kernel is launched; attributes follow. */
typedef struct {
    dim3 grid, block;
    size_t shared;
    hipStream_t stream;
    void *attributes;
    unsigned attribute_count;
} hipLaunchConfig_t;

typedef struct {
    unsigned grid[3], block[3], shared;
    hipStream_t stream;
    void *attributes;
    unsigned attribute_count;
} HIP_LAUNCH_CONFIG;

typedef struct {
    int type, id;
} hipMemLocation;

/* What follows the type differs between types. */
enum { hipGraphNodeTypeMemAlloc = 10 };
typedef struct {
    int type, reserved[3];
} hipGraphNodeParams;

typedef struct hip_Memcpy2D hip_Memcpy2D;
typedef struct hipMemcpy3DParms hipMemcpy3DParms;
typedef struct HIP_MEMCPY3D HIP_MEMCPY3D;
typedef struct hipMemPoolProps hipMemPoolProps;
typedef int hipMemAllocationHandleType, hipMemRangeHandleType;
typedef int hipDriverProcAddressQueryResult;
enum { HIP_GET_PROC_ADDRESS_SUCCESS = 0, HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1 };
enum { HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };

/* Where memory is; what is behind it differs between versions. */
typedef struct {
    int type;
    hipMemAllocationHandleType requestedHandleType;
    hipMemLocation location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
} hipMemAllocationProp;

enum { hipMemLocationTypeDevice = 1 };

#define OWN(name, parameters, ...)              hipError_t name parameters;
#define OWN_IN(name, stream, parameters, ...)   hipError_t name parameters;
#define GATED_IN(name, stream, parameters, ...) hipError_t name parameters;
#define USED(name, parameters)                  hipError_t name parameters;
#include "api.def"

#endif
