/* MUSA's ABI as the limiter meets it: our own declarations of what libmusa.so.1 exports. MUSA has CUDA's functions and
 * types under other names (Moore Threads' musa.h, and the tables of its torch_musa that rename one to the other), so
 * that layouts and values are those of ../cuda/abi.h; they were compared with no header of Moore Threads, which has
 * none that may be had without its toolkit. Only what the limiter answers or calls is here.
 */
#ifndef HETERO_MUSA_ABI_H
#define HETERO_MUSA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int MUdevice;
typedef unsigned long long MUdeviceptr;
typedef unsigned long long MUmemGenericAllocationHandle;
typedef struct MUctx_st *MUcontext;
typedef struct MUmod_st *MUmodule;
typedef struct MUfunc_st *MUfunction;
typedef struct MUlib_st *MUlibrary;
typedef struct MUkern_st *MUkernel;
typedef struct MUstream_st *MUstream;
typedef struct MUevent_st *MUevent;
typedef struct MUgraph_st *MUgraph;
typedef struct MUgraphNode_st *MUgraphNode;
typedef struct MUgraphExec_st *MUgraphExec;
typedef struct MUarray_st *MUarray;
typedef struct MUmipmappedArray_st *MUmipmappedArray;
typedef struct MUmemPoolHandle_st *MUmemoryPool;
typedef struct MUextMemory_st *MUexternalMemory;
typedef struct MUgreenCtx_st *MUgreenCtx;
typedef struct MUdevResourceDesc_st *MUdevResourceDesc;
#define MU_STREAM_LEGACY     ((MUstream)0x1) /* what NULL means, but in a _ptsz */
#define MU_STREAM_PER_THREAD ((MUstream)0x2)
#define MU_MEM_ATTACH_GLOBAL 0x01

/* Enums are 32-bit unsigned in this ABI; values nobody here uses are left out. */

typedef enum {
    MUSA_SUCCESS = 0,
    MUSA_ERROR_INVALID_VALUE = 1,
    MUSA_ERROR_OUT_OF_MEMORY = 2,
    MUSA_ERROR_NOT_INITIALIZED = 3,
    MUSA_ERROR_DEINITIALIZED = 4,
    MUSA_ERROR_INVALID_CONTEXT = 201,
    MUSA_ERROR_NOT_FOUND = 500,
    MUSA_ERROR_NOT_READY = 600,
    MUSA_ERROR_NOT_PERMITTED = 800,
    MUSA_ERROR_NOT_SUPPORTED = 801,
    MUSA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    MUSA_ERROR_CAPTURED_EVENT = 907,
} MUresult;

typedef enum {
    MU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
} MUdriverProcAddress_flags;

typedef enum {
    MU_GET_PROC_ADDRESS_SUCCESS = 0,
    MU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
} MUdriverProcAddressQueryResult;

typedef enum {
    MU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    MU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
} MUdevice_attribute;

typedef enum {
    MU_LIMIT_STACK_SIZE = 0,
    MU_LIMIT_PRINTF_FIFO_SIZE = 1,
    MU_LIMIT_MALLOC_HEAP_SIZE = 2,
} MUlimit;

typedef enum { MU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3 } MUfunction_attribute;

typedef enum { MU_EVENT_DEFAULT = 0, MU_EVENT_DISABLE_TIMING = 2, MU_EVENT_INTERPROCESS = 4 } MUevent_flags;

typedef enum {
    MU_STREAM_CAPTURE_STATUS_NONE = 0,
} MUstreamCaptureStatus;

typedef enum {
    MU_STREAM_CAPTURE_MODE_RELAXED = 2,
} MUstreamCaptureMode;

typedef enum {
    MU_MEMORYTYPE_HOST = 1,
    MU_MEMORYTYPE_DEVICE = 2,
    MU_MEMORYTYPE_ARRAY = 3,
    MU_MEMORYTYPE_UNIFIED = 4,
} MUmemorytype;

typedef enum {
    MU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    MU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    MU_AD_FORMAT_SIGNED_INT8 = 0x08,
    MU_AD_FORMAT_SIGNED_INT16 = 0x09,
    MU_AD_FORMAT_HALF = 0x10,
} MUarray_format;

#define MUSA_ARRAY3D_LAYERED          0x01
#define MUSA_ARRAY3D_CUBEMAP          0x04
#define MUSA_ARRAY3D_SPARSE           0x40 /* no memory of its own */
#define MUSA_ARRAY3D_DEFERRED_MAPPING 0x80 /* no memory of its own */

typedef enum {
    MU_MEM_ALLOCATION_TYPE_MANAGED = 2,
} MUmemAllocationType;

typedef enum {
    MU_MEM_HANDLE_TYPE_NONE = 0,
    MU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    MU_MEM_HANDLE_TYPE_FABRIC = 8,
} MUmemAllocationHandleType;

typedef enum {
    MU_MEM_LOCATION_TYPE_DEVICE = 1,
    MU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
} MUmemLocationType;

typedef enum {
    MU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    MU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    MU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
} MUmemAccess_flags;

typedef enum {
    MU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    MU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
} MUmemPool_attribute;

typedef enum {
    MU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    MU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
} MUgraphMem_attribute;

typedef enum {
    MU_GRAPH_NODE_TYPE_KERNEL = 0,
    MU_GRAPH_NODE_TYPE_GRAPH = 4, /* a child graph */
    MU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
} MUgraphNodeType;

typedef enum {
    MUSA_GRAPH_INSTANTIATE_SUCCESS = 0,
} MUgraphInstantiateResult;

typedef enum {
    MU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
    MU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD = 9,
} MUexternalMemoryHandleType;

typedef enum { MU_JIT_MAX_REGISTERS = 0 } MUjit_option;

typedef enum { MU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0 } MUlibraryOption;

typedef enum { MU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 } MUmemRangeHandleType;

typedef struct MUexecAffinityParam_st MUexecAffinityParam;
typedef struct MUctxCreateParams_st MUctxCreateParams;
typedef struct MUlaunchAttribute_st MUlaunchAttribute;
typedef struct MUmemcpyAttributes_st MUmemcpyAttributes;
typedef struct MUSA_MEMCPY3D_BATCH_OP_st MUSA_MEMCPY3D_BATCH_OP;

typedef enum {
    MU_MEM_OPERATION_TYPE_MAP = 1,
} MUmemOperationType;

typedef struct MUarrayMapInfo_st { /* a tile of a sparse array */
    unsigned resourceType;
    union {
        MUmipmappedArray mipmap;
        MUarray array;
    } resource;
    unsigned subresourceType;
    struct { /* of which there are two forms */
        unsigned long long word[4];
    } subresource;
    MUmemOperationType memOperationType;
    unsigned memHandleType;
    union {
        MUmemGenericAllocationHandle memHandle;
    } memHandle;
    unsigned long long offset;
    unsigned deviceBitMask, flags, reserved[2];
} MUarrayMapInfo;

typedef struct MUgraphicsResource_st *MUgraphicsResource;

typedef struct {
    char bytes[16];
} MUuuid;

typedef struct {
    char reserved[64];
} MUipcMemHandle;

typedef struct {
    unsigned char reserved[64];
} MUmemPoolPtrExportData;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    MUstream hStream;
    MUlaunchAttribute *attrs;
    unsigned numAttrs;
} MUlaunchConfig;

typedef struct {
    MUfunction function;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    MUstream hStream;
    void **kernelParams;
} MUSA_LAUNCH_PARAMS;

typedef struct {
    size_t Width, Height;
    MUarray_format Format;
    unsigned NumChannels;
} MUSA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width, Height, Depth;
    MUarray_format Format;
    unsigned NumChannels;
    unsigned Flags;
} MUSA_ARRAY3D_DESCRIPTOR;

typedef struct {
    size_t srcXInBytes, srcY;
    MUmemorytype srcMemoryType;
    const void *srcHost;
    MUdeviceptr srcDevice;
    MUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    MUmemorytype dstMemoryType;
    void *dstHost;
    MUdeviceptr dstDevice;
    MUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} MUSA_MEMCPY2D;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    MUmemorytype srcMemoryType;
    const void *srcHost;
    MUdeviceptr srcDevice;
    MUarray srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    MUmemorytype dstMemoryType;
    void *dstHost;
    MUdeviceptr dstDevice;
    MUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} MUSA_MEMCPY3D;

typedef struct { /* as MUSA_MEMCPY3D, with a context on each side in place of the reserved pointers */
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    MUmemorytype srcMemoryType;
    const void *srcHost;
    MUdeviceptr srcDevice;
    MUarray srcArray;
    MUcontext srcContext;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    MUmemorytype dstMemoryType;
    void *dstHost;
    MUdeviceptr dstDevice;
    MUarray dstArray;
    MUcontext dstContext;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} MUSA_MEMCPY3D_PEER;

typedef struct {
    MUmemLocationType type;
    int id; /* a device's ordinal or a NUMA node */
} MUmemLocation;

typedef struct {
    MUmemLocation location;
    MUmemAccess_flags flags;
} MUmemAccessDesc;

typedef struct {
    MUmemAllocationType type;
    MUmemAllocationHandleType requestedHandleTypes;
    MUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} MUmemAllocationProp;

typedef struct {
    MUmemAllocationType allocType;
    MUmemAllocationHandleType handleTypes;
    MUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} MUmemPoolProps;

typedef struct {
    MUexternalMemoryHandleType type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvSciBufObject;
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} MUSA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct { /* v1 and v2 have this one layout; dptr is the driver's answer */
    MUmemPoolProps poolProps;
    const MUmemAccessDesc *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    MUdeviceptr dptr;
} MUSA_MEM_ALLOC_NODE_PARAMS;

typedef struct {     /* CUDA_KERNEL_NODE_PARAMS_v2 */
    MUfunction func; /* NULL: kern is meant */
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
    MUkernel kern;
    MUcontext ctx;
} MUSA_KERNEL_NODE_PARAMS;

typedef struct {
    MUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
} MUSA_KERNEL_NODE_PARAMS_v1;

typedef struct { /* the members used here */
    MUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        MUSA_KERNEL_NODE_PARAMS kernel;
        struct {
            MUgraph graph;
        } graph;
    };
    long long reserved2;
} MUgraphNodeParams;

typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} MUgraphEdgeData;

typedef enum { MU_GRAPH_EXEC_UPDATE_SUCCESS = 0 } MUgraphExecUpdateResult;

typedef struct {
    MUgraphExecUpdateResult result;
    MUgraphNode errorNode, errorFromNode;
} MUgraphExecUpdateResultInfo;

typedef struct {
    uint64_t flags;
    MUstream hUploadStream;
    MUgraphNode hErrNode_out;
    MUgraphInstantiateResult result_out;
} MUSA_GRAPH_INSTANTIATE_PARAMS;

#define OWN(name, parameters, ...)              MUresult name parameters;
#define OWN_IN(name, stream, parameters, ...)   MUresult name parameters;
#define GATED_IN(name, stream, parameters, ...) MUresult name parameters;
#define USED(name, parameters)                  MUresult name parameters;
#include "api.def"

#endif
