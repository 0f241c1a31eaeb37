/* A simulated libamdhip64.so.7 (or .6), for what AMD's runtime of Debian, 5.2.3, does not have: HIP's names over the
 * simulated driver of CUDA's shape, which accounts for a card's memory and time. AMD's own allocator is not simulated.
 * Error codes are CUDA's, since HIP numbers them alike (hip_runtime_api.h of ROCm 6.3). Parameters of functions that
 * the limiter does not hook are from that header, too.
 *
 * A thread has a current device and no contexts. Each call enters the primary context of that device.
 */
#include "amd.h"
#include "driver.h"
#include "hip/abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static CUcontext primary_contexts[ENGINE_CARDS];         /* of the devices that were used */
static unsigned reset_count; /* counts resets of any device; a thread enters its context again after one */

static __thread int current_device;
static __thread CUcontext entered_context;
static __thread unsigned thread_reset_count;

static CUresult enter(void)
{
    CHECK(cuInit(0));
    pthread_mutex_lock(&lock);
    CUresult result = primary_contexts[current_device]
                          ? CUDA_SUCCESS
                          : cuDevicePrimaryCtxRetain(&primary_contexts[current_device], current_device);
    if (result == CUDA_SUCCESS &&
        (entered_context != primary_contexts[current_device] || thread_reset_count != reset_count)) {
        result = cuCtxSetCurrent(primary_contexts[current_device]);
        entered_context = primary_contexts[current_device];
        thread_reset_count = reset_count;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* `result` in a context of the current device. */
#define HIP(name, parameters, result)                                                                                  \
    EXPORT hipError_t name parameters                                                                                  \
    {                                                                                                                  \
        CUresult entry_result = enter();                                                                               \
        return (hipError_t)(entry_result == CUDA_SUCCESS ? (result) : entry_result);                                   \
    }
/* Defines also the variant for per-thread default streams. S() is the stream of the call. */
#define SPT(name, parameters, result)                                                                                  \
    EXPORT hipError_t name parameters                                                                                  \
    {                                                                                                                  \
        const CUstream null_stream __attribute__((unused)) = NULL;                                                     \
        CUresult entry_result = enter();                                                                               \
        return (hipError_t)(entry_result == CUDA_SUCCESS ? (result) : entry_result);                                   \
    }                                                                                                                  \
    EXPORT hipError_t name##_spt parameters                                                                            \
    {                                                                                                                  \
        const CUstream null_stream __attribute__((unused)) = CU_STREAM_PER_THREAD;                                     \
        CUresult entry_result = enter();                                                                               \
        return (hipError_t)(entry_result == CUDA_SUCCESS ? (result) : entry_result);                                   \
    }
#define S(stream)         ((stream) ? (CUstream)(stream) : null_stream)
#define P(pointer)        ((CUdeviceptr)(uintptr_t)(pointer))
#define TO(type, pointer) ((type *)(void *)(pointer))

/* clang-format off */

/* Devices. */

EXPORT hipError_t hipInit(unsigned flags) { return (hipError_t)cuInit(flags); }
EXPORT hipError_t hipGetDeviceCount(int *count)
{
    *count = 0;
    CUresult result = cuInit(0);
    return (hipError_t)(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}
EXPORT hipError_t hipGetDevice(int *device) { return *device = current_device, hipSuccess; }
EXPORT hipError_t hipSetDevice(int device)
{
    int count;
    hipError_t result = hipGetDeviceCount(&count);
    if (result == hipSuccess && (device < 0 || device >= count))
        return (hipError_t)CUDA_ERROR_INVALID_DEVICE;
    current_device = result == hipSuccess ? device : current_device;
    return result;
}
HIP(hipDeviceGetName, (char *name, int capacity_bytes, hipDevice_t device), cuDeviceGetName(name, capacity_bytes, device))
HIP(hipDeviceTotalMem, (size_t *bytes, hipDevice_t device), cuDeviceTotalMem_v2(bytes, device))
HIP(hipSetDeviceFlags, (unsigned flags), flags & ~31u ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)
HIP(hipDeviceSynchronize, (void), cuCtxSynchronize())

static CUresult identity(hipDevice_t device, hipUUID *uuid)
{
    char digits[17];
    if (device < 0 || (unsigned)device >= driver.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)amd_unique_id(driver.devices[device].slot));
    memcpy(uuid->bytes, digits, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
HIP(hipDeviceGetUuid, (hipUUID *uuid, hipDevice_t device), identity(device, uuid))

static CUresult properties_of(char *name, size_t *total, int device)
{
    CHECK(cuDeviceGetName(name, 256, device));
    return cuDeviceTotalMem_v2(total, device);
}
HIP(hipGetDevicePropertiesR0000, (hipDeviceProp_t *properties, int device), properties_of(properties->name, &properties->totalGlobalMem, device))
HIP(hipGetDevicePropertiesR0600, (hipDeviceProp_tR0600 *properties, int device), properties_of(properties->name, &properties->totalGlobalMem, device))

static CUresult reset(hipDevice_t device)
{
    pthread_mutex_lock(&lock);
    CUresult result = cuDevicePrimaryCtxReset_v2(device);
    if (result == CUDA_SUCCESS)
        primary_contexts[device] = NULL; /* the next call creates it again */
    reset_count++;
    pthread_mutex_unlock(&lock);
    return result;
}
HIP(hipDeviceReset, (void), reset(current_device))
HIP(hipDevicePrimaryCtxReset, (hipDevice_t device), reset(device))

/* Memory by pointer. */

HIP(hipMemGetInfo, (size_t *free, size_t *total), cuMemGetInfo_v2(free, total))
HIP(hipMalloc, (void **pointer, size_t bytes), cuMemAlloc_v2(TO(CUdeviceptr, pointer), bytes))
HIP(hipExtMallocWithFlags, (void **pointer, size_t bytes, unsigned flags),
    ((void)flags, cuMemAlloc_v2(TO(CUdeviceptr, pointer), bytes)))
HIP(hipMallocManaged, (void **pointer, size_t bytes, unsigned flags),
    cuMemAllocManaged(TO(CUdeviceptr, pointer), bytes, flags))
HIP(hipMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height),
    cuMemAllocPitch_v2(TO(CUdeviceptr, pointer), pitch, width, height, 4))
HIP(hipMemAllocPitch, (hipDeviceptr_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element),
    cuMemAllocPitch_v2(TO(CUdeviceptr, pointer), pitch, width, height, element))
HIP(hipMalloc3D, (hipPitchedPtr *hipPitchedPtr, hipExtent extent), (hipPitchedPtr->xsize = extent.width, hipPitchedPtr->ysize = extent.height,
    cuMemAllocPitch_v2(TO(CUdeviceptr, &hipPitchedPtr->ptr), &hipPitchedPtr->pitch, extent.width, extent.height * extent.depth, 4)))
HIP(hipFree, (void *pointer), pointer ? cuMemFree_v2(P(pointer)) : CUDA_SUCCESS)
HIP(hipFreeAsync, (void *pointer, hipStream_t stream), cuMemFreeAsync(P(pointer), (CUstream)stream))
HIP(hipMemGetAddressRange, (hipDeviceptr_t *start, size_t *bytes, hipDeviceptr_t address),
    cuMemGetAddressRange_v2(TO(CUdeviceptr, start), bytes, P(address)))
HIP(hipIpcGetMemHandle, (hipIpcMemHandle_t *handle, void *pointer),
    cuIpcGetMemHandle(TO(CUipcMemHandle, handle), P(pointer)))
HIP(hipIpcCloseMemHandle, (void *pointer), cuIpcCloseMemHandle(P(pointer)))
EXPORT hipError_t hipIpcOpenMemHandle(void **pointer, hipIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle cuda_handle;
    memcpy(&cuda_handle, &handle, sizeof cuda_handle);
    CUresult entry_result = enter();
    return (hipError_t)(entry_result ? entry_result
                                     : cuIpcOpenMemHandle_v2(TO(CUdeviceptr, pointer), cuda_handle, flags));
}

/* Pools; their attributes have CUDA's numbers. */

HIP(hipMallocAsync, (void **pointer, size_t bytes, hipStream_t stream),
    cuMemAllocAsync(TO(CUdeviceptr, pointer), bytes, (CUstream)stream))
HIP(hipMallocFromPoolAsync, (void **pointer, size_t bytes, hipMemPool_t pool, hipStream_t stream),
    cuMemAllocFromPoolAsync(TO(CUdeviceptr, pointer), bytes, (CUmemoryPool)pool, (CUstream)stream))
HIP(hipDeviceGetMemPool, (hipMemPool_t *pool, int device), cuDeviceGetMemPool(TO(CUmemoryPool, pool), device))
HIP(hipDeviceGetDefaultMemPool, (hipMemPool_t *pool, int device),
    cuDeviceGetDefaultMemPool(TO(CUmemoryPool, pool), device))
HIP(hipDeviceSetMemPool, (int device, hipMemPool_t pool), cuDeviceSetMemPool(device, (CUmemoryPool)pool))
HIP(hipMemPoolCreate, (hipMemPool_t *pool, const hipMemPoolProps *properties),
    cuMemPoolCreate(TO(CUmemoryPool, pool), TO(const CUmemPoolProps, properties)))
HIP(hipMemPoolGetAttribute, (hipMemPool_t pool, hipMemPoolAttr attribute, void *value),
    cuMemPoolGetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value))
HIP(hipMemPoolTrimTo, (hipMemPool_t pool, size_t keep), cuMemPoolTrimTo((CUmemoryPool)pool, keep))
HIP(hipMemPoolDestroy, (hipMemPool_t pool), cuMemPoolDestroy((CUmemoryPool)pool))

/* Arrays: descriptors are CUDA's. */

static CUresult array(hipArray_t *array, const hipChannelFormatDesc *format, hipExtent extent)
{
    static const unsigned kinds[3][3] = {{8, 9, 10}, {1, 2, 3}, {16, 16, 32}}; /* signed, unsigned, float; 1, 2, 4 bytes */
    if (!format || (unsigned)format->f > 2)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned channels = (format->x > 0) + (format->y > 0) + (format->z > 0) + (format->w > 0);
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = extent.width, .Height = extent.height, .Depth = extent.depth,
                                     .Format = kinds[format->f][format->x / 16], .NumChannels = channels};
    return cuArray3DCreate_v2(TO(CUarray, array), &shape);
}
HIP(hipMallocArray, (hipArray_t *made, const hipChannelFormatDesc *format, size_t width, size_t height, unsigned flags),
    ((void)flags, array(made, format, (hipExtent){width, height, 0})))
HIP(hipMalloc3DArray, (hipArray_t *made, const hipChannelFormatDesc *format, hipExtent extent, unsigned flags),
    ((void)flags, array(made, format, extent)))
HIP(hipFreeArray, (hipArray_t hipArray_t), cuArrayDestroy((CUarray)hipArray_t))
HIP(hipArrayCreate, (hipArray_t *made, const HIP_ARRAY_DESCRIPTOR *shape),
    cuArrayCreate_v2(TO(CUarray, made), TO(const CUDA_ARRAY_DESCRIPTOR, shape)))
HIP(hipArray3DCreate, (hipArray_t *made, const HIP_ARRAY3D_DESCRIPTOR *shape),
    cuArray3DCreate_v2(TO(CUarray, made), TO(const CUDA_ARRAY3D_DESCRIPTOR, shape)))
HIP(hipArrayDestroy, (hipArray_t hipArray_t), cuArrayDestroy((CUarray)hipArray_t))

/* Blocks of physical memory. A mapping keeps its block until its addresses are freed: unmapping frees no memory
 * (vllm-project/vllm issue 37533, ROCm 6.4 and 7.0). */

static struct mapping {
    struct mapping *next;
    CUdeviceptr start;
    CUmemGenericAllocationHandle block;
} *mappings; /* under the lock */

static CUresult map(CUdeviceptr start, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
                    unsigned long long flags)
{
    struct mapping *mapping = malloc(sizeof *mapping);
    CUresult result = cuMemMap(start, size, offset, P(handle), flags);
    if (result == CUDA_SUCCESS)
        result = cuMemRetainAllocationHandle(&mapping->block, TO(void, start));
    if (result != CUDA_SUCCESS)
        return free(mapping), result;
    pthread_mutex_lock(&lock);
    mapping->start = start, mapping->next = mappings, mappings = mapping;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult free_addresses(CUdeviceptr start, size_t size)
{
    CHECK(cuMemAddressFree(start, size));
    pthread_mutex_lock(&lock);
    for (struct mapping **link = &mappings, *mapping; (mapping = *link);) {
        if (mapping->start < start || mapping->start >= start + size) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        cuMemRelease(mapping->block);
        free(mapping);
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
HIP(hipMemCreate, (hipMemGenericAllocationHandle_t *block, size_t bytes, const hipMemAllocationProp *properties,
    unsigned long long flags),
    cuMemCreate(TO(CUmemGenericAllocationHandle, block), bytes, TO(const CUmemAllocationProp, properties), flags))
HIP(hipMemRelease, (hipMemGenericAllocationHandle_t block), cuMemRelease(P(block)))
HIP(hipMemRetainAllocationHandle, (hipMemGenericAllocationHandle_t *block, void *address),
    cuMemRetainAllocationHandle(TO(CUmemGenericAllocationHandle, block), address))
HIP(hipMemAddressReserve, (void **start, size_t size, size_t alignment, void *address_hint, unsigned long long flags),
    cuMemAddressReserve(TO(CUdeviceptr, start), size, alignment, P(address_hint), flags))
HIP(hipMemAddressFree, (void *start, size_t size), free_addresses(P(start), size))
HIP(hipMemMap, (void *start, size_t size, size_t offset, hipMemGenericAllocationHandle_t block,
    unsigned long long flags), map(P(start), size, offset, block, flags))
HIP(hipMemUnmap, (void *start, size_t size), cuMemUnmap(P(start), size))
HIP(hipMemExportToShareableHandle, (void *shared, hipMemGenericAllocationHandle_t block,
    hipMemAllocationHandleType type, unsigned long long flags),
    cuMemExportToShareableHandle(shared, P(block), (CUmemAllocationHandleType)type, flags))
HIP(hipMemImportFromShareableHandle, (hipMemGenericAllocationHandle_t *block, void *shared,
    hipMemAllocationHandleType type),
    cuMemImportFromShareableHandle(TO(CUmemGenericAllocationHandle, block), shared, (CUmemAllocationHandleType)type))

/* Modules, and the kernels of programs that hipcc built, which are named by host addresses. */

HIP(hipModuleLoad, (hipModule_t *module, const char *path), cuModuleLoad(TO(CUmodule, module), path))
HIP(hipModuleLoadData, (hipModule_t *module, const void *image), cuModuleLoadData(TO(CUmodule, module), image))
HIP(hipModuleLoadFatBinary, (hipModule_t *module, const void *image), cuModuleLoadData(TO(CUmodule, module), image))
HIP(hipModuleLoadDataEx, (hipModule_t *module, const void *image, unsigned count, hipJitOption *options, void **values),
    ((void)count, (void)options, (void)values, cuModuleLoadData(TO(CUmodule, module), image)))
HIP(hipModuleUnload, (hipModule_t module), cuModuleUnload((CUmodule)module))
HIP(hipModuleGetFunction, (hipFunction_t *function, hipModule_t module, const char *name),
    cuModuleGetFunction(TO(CUfunction, function), (CUmodule)module, name))
HIP(hipLibraryLoadData, (hipLibrary_t *library, const void *image, hipJitOption *options, void **values,
    unsigned count, hipLibraryOption *more, void **more_values, unsigned more_count),
    ((void)options, (void)values, (void)count, (void)more, (void)more_values, (void)more_count,
    cuLibraryLoadData(TO(CUlibrary, library), image, NULL, NULL, 0, NULL, NULL, 0)))
HIP(hipLibraryLoadFromFile, (hipLibrary_t *library, const char *path, hipJitOption *options, void **values,
    unsigned count, hipLibraryOption *more, void **more_values, unsigned more_count),
    ((void)options, (void)values, (void)count, (void)more, (void)more_values, (void)more_count,
    cuLibraryLoadFromFile(TO(CUlibrary, library), path, NULL, NULL, 0, NULL, NULL, 0)))
HIP(hipLibraryUnload, (hipLibrary_t library), cuLibraryUnload((CUlibrary)library))

static struct registered {
    const void *host;
    const char *name;
    const void *image;
    CUmodule module;
} registered[64]; /* under the lock; the first without `host` ends them */

/* What clang hands over of a program's kernels. */
struct wrapper {
    uint32_t magic, version;
    const void *image, *unused;
};
EXPORT const struct wrapper *__hipRegisterFatBinary(const struct wrapper *kernels) { return kernels; }
EXPORT void __hipUnregisterFatBinary(const struct wrapper *kernels) { (void)kernels; }
EXPORT void __hipRegisterFunction(const struct wrapper *kernels, const void *host, char *name, const char *device_name, unsigned threads,
                                  void *thread, void *block, void *block_size, void *grid_size, int *warp)
{
    (void)name, (void)threads, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp;
    pthread_mutex_lock(&lock);
    unsigned index = 0;
    while (index < 63 && registered[index].host)
        index++;
    registered[index] = (struct registered){host, device_name, kernels->image, NULL};
    pthread_mutex_unlock(&lock);
}

static CUresult kernel_at(const void *host, CUfunction *function)
{
    pthread_mutex_lock(&lock);
    struct registered *registration = registered;
    while (registration->host && registration->host != host)
        registration++;
    CUresult result = registration->host ? CUDA_SUCCESS : (CUresult)98; /* hipErrorInvalidDeviceFunction */
    if (registration->host && !registration->module)
        result = cuModuleLoadData(&registration->module, registration->image);
    pthread_mutex_unlock(&lock);
    return result == CUDA_SUCCESS ? cuModuleGetFunction(function, registration->module, registration->name) : result;
}

/* Launches. */

static CUresult launch(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
    CUfunction function;
    CHECK(kernel_at(host, &function));
    return cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream,
                          arguments, NULL);
}
HIP(hipModuleLaunchKernel, (hipFunction_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, hipStream_t stream, void **parameters, void **extra),
    cuLaunchKernel((CUfunction)function, gx, gy, gz, bx, by, bz, shared, (CUstream)stream, parameters, extra))
HIP(hipModuleLaunchCooperativeKernel, (hipFunction_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned shared, hipStream_t stream, void **parameters),
    cuLaunchCooperativeKernel((CUfunction)function, gx, gy, gz, bx, by, bz, shared, (CUstream)stream, parameters))
HIP(_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j,
    (hipFunction_t function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
    size_t shared, hipStream_t stream, void **parameters, void **extra, hipEvent_t begin, hipEvent_t end,
    uint32_t flags), ((void)begin, (void)end, (void)flags, cuLaunchKernel((CUfunction)function, gx / bx, gy / by,
    gz / bz, bx, by, bz, (unsigned)shared, (CUstream)stream, parameters, extra)))
HIP(_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_,
    (hipFunction_t function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
    size_t shared, hipStream_t stream, void **parameters, void **extra, hipEvent_t begin, hipEvent_t end),
    ((void)begin, (void)end, cuLaunchKernel((CUfunction)function, gx / bx, gy / by, gz / bz, bx, by, bz,
    (unsigned)shared, (CUstream)stream, parameters, extra)))
/* The list is CUDA's. */
HIP(hipModuleLaunchCooperativeKernelMultiDevice, (hipFunctionLaunchParams *launches, unsigned count, unsigned flags),
    cuLaunchCooperativeKernelMultiDevice(TO(CUDA_LAUNCH_PARAMS, launches), count, flags))
SPT(hipLaunchKernel, (const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t stream),
    launch(host, grid, block, arguments, shared, S(stream)))
SPT(hipLaunchCooperativeKernel, (const void *host, dim3 grid, dim3 block, void **arguments, unsigned shared,
    hipStream_t stream), launch(host, grid, block, arguments, shared, S(stream)))
HIP(hipExtLaunchKernel, (const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t stream,
    hipEvent_t begin, hipEvent_t end, int flags), ((void)begin, (void)end, (void)flags,
    launch(host, grid, block, arguments, shared, (CUstream)stream)))
HIP(hipLaunchKernelExC, (const hipLaunchConfig_t *hipLaunchConfig_t, const void *host, void **arguments),
    launch(host, hipLaunchConfig_t->grid, hipLaunchConfig_t->block, arguments, hipLaunchConfig_t->shared, (CUstream)hipLaunchConfig_t->stream))
HIP(hipDrvLaunchKernelEx, (const HIP_LAUNCH_CONFIG *HIP_LAUNCH_CONFIG, hipFunction_t function, void **arguments, void **extra),
    cuLaunchKernel((CUfunction)function, HIP_LAUNCH_CONFIG->grid[0], HIP_LAUNCH_CONFIG->grid[1], HIP_LAUNCH_CONFIG->grid[2], HIP_LAUNCH_CONFIG->block[0], HIP_LAUNCH_CONFIG->block[1],
    HIP_LAUNCH_CONFIG->block[2], HIP_LAUNCH_CONFIG->shared, (CUstream)HIP_LAUNCH_CONFIG->stream, arguments, extra))

/* Streams, events and graphs. */

HIP(hipStreamCreate, (hipStream_t *stream), cuStreamCreate(TO(CUstream, stream), 0))
HIP(hipStreamCreateWithFlags, (hipStream_t *stream, unsigned flags), cuStreamCreate(TO(CUstream, stream), flags))
HIP(hipStreamDestroy, (hipStream_t stream), cuStreamDestroy_v2((CUstream)stream))
SPT(hipStreamQuery, (hipStream_t stream), cuStreamQuery(S(stream)))
SPT(hipStreamSynchronize, (hipStream_t stream), cuStreamSynchronize(S(stream)))
HIP(hipStreamGetDevice, (hipStream_t stream, hipDevice_t *device), cuStreamGetDevice((CUstream)stream, device))
SPT(hipStreamIsCapturing, (hipStream_t stream, hipStreamCaptureStatus *status),
    cuStreamIsCapturing(S(stream), TO(CUstreamCaptureStatus, status)))
HIP(hipEventCreateWithFlags, (hipEvent_t *event, unsigned flags), cuEventCreate(TO(CUevent, event), flags))
HIP(hipEventDestroy, (hipEvent_t event), cuEventDestroy_v2((CUevent)event))
HIP(hipEventQuery, (hipEvent_t event), cuEventQuery((CUevent)event))
HIP(hipEventSynchronize, (hipEvent_t event), cuEventSynchronize((CUevent)event))
SPT(hipEventRecord, (hipEvent_t event, hipStream_t stream), cuEventRecord((CUevent)event, S(stream)))
HIP(hipThreadExchangeStreamCaptureMode, (hipStreamCaptureMode *mode),
    cuThreadExchangeStreamCaptureMode(TO(CUstreamCaptureMode, mode)))
SPT(hipStreamBeginCapture, (hipStream_t stream, hipStreamCaptureMode mode),
    cuStreamBeginCapture_v2(S(stream), (CUstreamCaptureMode)mode))
SPT(hipStreamEndCapture, (hipStream_t stream, hipGraph_t *graph), cuStreamEndCapture(S(stream), TO(CUgraph, graph)))
HIP(hipGraphCreate, (hipGraph_t *graph, unsigned flags), cuGraphCreate(TO(CUgraph, graph), flags))
HIP(hipGraphAddMemAllocNode, (void *node, hipGraph_t graph, const void *needs, size_t count, void *parameters),
    cuGraphAddMemAllocNode(node, (CUgraph)graph, needs, count, parameters))
HIP(hipGraphAddNode, (void *node, hipGraph_t graph, const void *needs, size_t count, hipGraphNodeParams *parameters),
    cuGraphAddNode(node, (CUgraph)graph, needs, count, TO(CUgraphNodeParams, parameters)))
HIP(hipGraphInstantiate, (hipGraphExec_t *exec, hipGraph_t graph, void *node, char *log, size_t size),
    cuGraphInstantiate_v2(TO(CUgraphExec, exec), (CUgraph)graph, node, log, size))
HIP(hipGraphExecDestroy, (hipGraphExec_t exec), cuGraphExecDestroy((CUgraphExec)exec))
HIP(hipGraphUpload, (hipGraphExec_t exec, hipStream_t stream), cuGraphUpload((CUgraphExec)exec, (CUstream)stream))
SPT(hipGraphLaunch, (hipGraphExec_t exec, hipStream_t stream), cuGraphLaunch((CUgraphExec)exec, S(stream)))

/* Copies and fills. */

SPT(hipMemcpy, (void *to, const void *from, size_t bytes, hipMemcpyKind kind),
    ((void)kind, cuMemcpy(P(to), P(from), bytes)))
SPT(hipMemcpyAsync, (void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream),
    ((void)kind, cuMemcpyAsync(P(to), P(from), bytes, S(stream))))
static CUresult copy_in(void *to, const void *from, size_t bytes, CUstream stream)
{
    CHECK(cuMemcpyAsync(P(to), P(from), bytes, stream));
    return cuStreamSynchronize(stream);
}
HIP(hipMemcpyWithStream, (void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream),
    ((void)kind, copy_in(to, from, bytes, (CUstream)stream)))
HIP(hipMemcpyHtoD, (hipDeviceptr_t to, void *from, size_t bytes), cuMemcpyHtoD_v2(P(to), from, bytes))
HIP(hipMemcpyDtoH, (void *to, hipDeviceptr_t from, size_t bytes), cuMemcpyDtoH_v2(to, P(from), bytes))
HIP(hipMemcpyDtoD, (hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes), cuMemcpyDtoD_v2(P(to), P(from), bytes))
HIP(hipMemcpyHtoDAsync, (hipDeviceptr_t to, void *from, size_t bytes, hipStream_t stream),
    cuMemcpyHtoDAsync_v2(P(to), from, bytes, (CUstream)stream))
HIP(hipMemcpyDtoHAsync, (void *to, hipDeviceptr_t from, size_t bytes, hipStream_t stream),
    cuMemcpyDtoHAsync_v2(to, P(from), bytes, (CUstream)stream))
HIP(hipMemcpyAtoH, (void *to, hipArray_t from, size_t at, size_t bytes), cuMemcpyAtoH_v2(to, (CUarray)from, at, bytes))
HIP(hipMemcpyHtoA, (hipArray_t to, size_t at, const void *from, size_t bytes),
    cuMemcpyHtoA_v2((CUarray)to, at, from, bytes))
HIP(hipMemcpyAtoD, (hipDeviceptr_t to, hipArray_t from, size_t at, size_t bytes),
    cuMemcpyAtoD_v2(P(to), (CUarray)from, at, bytes))
HIP(hipMemcpyDtoA, (hipArray_t to, size_t at, hipDeviceptr_t from, size_t bytes),
    cuMemcpyDtoA_v2((CUarray)to, at, P(from), bytes))
HIP(hipMemcpyAtoA, (hipArray_t to, size_t at, hipArray_t from, size_t offset, size_t bytes),
    cuMemcpyAtoA_v2((CUarray)to, at, (CUarray)from, offset, bytes))
HIP(hipMemcpyAtoHAsync, (void *to, hipArray_t from, size_t at, size_t bytes, hipStream_t stream),
    cuMemcpyAtoHAsync_v2(to, (CUarray)from, at, bytes, (CUstream)stream))
HIP(hipMemcpyHtoAAsync, (hipArray_t to, size_t at, const void *from, size_t bytes, hipStream_t stream),
    cuMemcpyHtoAAsync_v2((CUarray)to, at, from, bytes, (CUstream)stream))

/* Rows: of memory on either side, or of an array. */
static CUDA_MEMCPY2D rows(void *to, size_t to_pitch, CUarray to_array, const void *from, size_t from_pitch,
                          CUarray from_array, size_t width, size_t height)
{
    return (CUDA_MEMCPY2D){
        .dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
        .srcMemoryType = from_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
        .dstDevice = P(to), .dstPitch = to_pitch, .dstArray = to_array, .srcDevice = P(from), .srcPitch = from_pitch,
        .srcArray = from_array, .WidthInBytes = width, .Height = height};
}
static CUDA_MEMCPY2D placed(CUDA_MEMCPY2D copy, size_t x, size_t y, size_t from_x, size_t from_y)
{
    copy.dstXInBytes = x, copy.dstY = y, copy.srcXInBytes = from_x, copy.srcY = from_y;
    return copy;
}
static CUresult copied(CUDA_MEMCPY2D copy) { return cuMemcpy2DUnaligned_v2(&copy); }
static CUresult copied_in(CUDA_MEMCPY2D copy, CUstream stream) { return cuMemcpy2DAsync_v2(&copy, stream); }

SPT(hipMemcpy2D, (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
    hipMemcpyKind kind), ((void)kind, copied(rows(to, to_pitch, NULL, from, from_pitch, NULL, width, height))))
SPT(hipMemcpy2DAsync, (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
    hipMemcpyKind kind, hipStream_t stream),
    ((void)kind, copied_in(rows(to, to_pitch, NULL, from, from_pitch, NULL, width, height), S(stream))))
SPT(hipMemcpy2DToArray, (hipArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
    size_t height, hipMemcpyKind kind), ((void)kind,
    copied(placed(rows(NULL, 0, (CUarray)to, from, pitch, NULL, width, height), x, y, 0, 0))))
SPT(hipMemcpy2DToArrayAsync, (hipArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
    size_t height, hipMemcpyKind kind, hipStream_t stream), ((void)kind,
    copied_in(placed(rows(NULL, 0, (CUarray)to, from, pitch, NULL, width, height), x, y, 0, 0), S(stream))))
SPT(hipMemcpy2DFromArray, (void *to, size_t pitch, hipArray_t from, size_t x, size_t y, size_t width, size_t height,
    hipMemcpyKind kind), ((void)kind,
    copied(placed(rows(to, pitch, NULL, NULL, 0, (CUarray)from, width, height), 0, 0, x, y))))
SPT(hipMemcpy2DFromArrayAsync, (void *to, size_t pitch, hipArray_t from, size_t x, size_t y, size_t width,
    size_t height, hipMemcpyKind kind, hipStream_t stream), ((void)kind,
    copied_in(placed(rows(to, pitch, NULL, NULL, 0, (CUarray)from, width, height), 0, 0, x, y), S(stream))))
SPT(hipMemcpyFromArray, (void *to, hipArray_t from, size_t x, size_t y, size_t bytes, hipMemcpyKind kind), ((void)kind,
    copied(placed(rows(to, bytes, NULL, NULL, 0, (CUarray)from, bytes, 1), 0, 0, x, y))))
HIP(hipMemcpy2DArrayToArray, (hipArray_t to, size_t x, size_t y, hipArray_t from, size_t from_x, size_t from_y,
    size_t width, size_t height, hipMemcpyKind kind), ((void)kind,
    copied(placed(rows(NULL, 0, (CUarray)to, NULL, 0, (CUarray)from, width, height), x, y, from_x, from_y))))
HIP(hipMemcpyBatchAsync, (void **to, void **from, size_t *bytes, size_t count, void *attributes, size_t *indices,
    size_t attribute_count, size_t *failed, hipStream_t stream),
    cuMemcpyBatchAsync(TO(CUdeviceptr, to), TO(CUdeviceptr, from), bytes, count, attributes, indices, attribute_count,
    failed, (CUstream)stream))
SPT(hipMemset, (void *to, int value, size_t bytes), cuMemsetD8_v2(P(to), (unsigned char)value, bytes))
SPT(hipMemsetAsync, (void *to, int value, size_t bytes, hipStream_t stream),
    cuMemsetD8Async(P(to), (unsigned char)value, bytes, S(stream)))
SPT(hipMemset2D, (void *to, size_t pitch, int value, size_t width, size_t height),
    cuMemsetD2D8_v2(P(to), pitch, (unsigned char)value, width, height))
SPT(hipMemset2DAsync, (void *to, size_t pitch, int value, size_t width, size_t height, hipStream_t stream),
    cuMemsetD2D8Async(P(to), pitch, (unsigned char)value, width, height, S(stream)))
SPT(hipMemset3D, (hipPitchedPtr to, int value, hipExtent extent),
    cuMemsetD2D8_v2(P(to.ptr), to.pitch, (unsigned char)value, extent.width, extent.height * extent.depth))
SPT(hipMemset3DAsync, (hipPitchedPtr to, int value, hipExtent extent, hipStream_t stream),
    cuMemsetD2D8Async(P(to.ptr), to.pitch, (unsigned char)value, extent.width, extent.height * extent.depth, S(stream)))
#define FILL(bits, type)                                                                                               \
    HIP(hipMemsetD2D##bits, (hipDeviceptr_t to, size_t pitch, type value, size_t width, size_t height),                \
        cuMemsetD2D##bits##_v2(P(to), pitch, value, width, height))                                                    \
    HIP(hipMemsetD2D##bits##Async, (hipDeviceptr_t to, size_t pitch, type value, size_t width, size_t height,          \
        hipStream_t stream), cuMemsetD2D##bits##Async(P(to), pitch, value, width, height, (CUstream)stream))
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)
EXPORT hipError_t hipMemPrefetchAsync_v2(const void *start, size_t bytes, hipMemLocation to, unsigned flags,
                                         hipStream_t stream)
{
    CUresult entry_result = enter();
    CUmemLocation location = {.type = (CUmemLocationType)to.type, .id = to.id};
    return (hipError_t)(entry_result ? entry_result : cuMemPrefetchAsync_v2(P(start), bytes, location, flags, (CUstream)stream));
}
#define PREFETCH_BATCH(name, of, pointer)                                                                              \
    EXPORT hipError_t name(pointer *starts, size_t *bytes, size_t count, hipMemLocation *to, size_t *which,            \
                           size_t kinds, unsigned long long flags, hipStream_t stream)                                 \
    {                                                                                                                  \
        CUresult entry_result = enter();                                                                                       \
        return (hipError_t)(entry_result ? entry_result : of((CUdeviceptr *)starts, bytes, count, (CUmemLocation *)to, which, kinds,   \
                                             flags, (CUstream)stream));                                                \
    }
PREFETCH_BATCH(hipMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, void *)
PREFETCH_BATCH(hipMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, void *)
PREFETCH_BATCH(hipDrvMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, hipDeviceptr_t)
/* clang-format on */

/* The lookup; of flags, 2 asks for what ends in _spt. */

static CUresult find(const char *name, void **function, unsigned long long flags,
                     hipDriverProcAddressQueryResult *status)
{
    char variant[128];
    if (!name || !function || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(variant, sizeof variant, "%s_spt", name);
    *function = flags == 2 ? entry_exported(variant) : NULL;
    if (!*function)
        *function = entry_exported(name);
    if (status)
        *status = *function ? HIP_GET_PROC_ADDRESS_SUCCESS : HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* hipErrorInvalidValue, unlike CUDA */
}

EXPORT hipError_t hipGetProcAddress(const char *name, void **found, int version, uint64_t flags,
                                    hipDriverProcAddressQueryResult *status)
{
    (void)version;
    return (hipError_t)find(name, found, flags, status);
}

EXPORT hipError_t hipGetProcAddress_spt(const char *name, void **found, int version, uint64_t flags,
                                        hipDriverProcAddressQueryResult *status)
{
    return hipGetProcAddress(name, found, version, flags ? flags : 2, status);
}

EXPORT hipError_t hipGetDriverEntryPoint(const char *name, void **found, unsigned long long flags,
                                         hipDriverProcAddressQueryResult *status)
{
    return (hipError_t)find(name, found, flags, status);
}

EXPORT hipError_t hipGetDriverEntryPoint_spt(const char *name, void **found, unsigned long long flags,
                                             hipDriverProcAddressQueryResult *status)
{
    return (hipError_t)find(name, found, flags ? flags : 2, status);
}
