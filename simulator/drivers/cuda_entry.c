/* Ways into the fake driver besides its plain names: the variants for a per-thread default stream, cuGetProcAddress,
 * error names. */
#include "driver.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* Variants. */

#define PTSZ(name, parameters, arguments)                                                                              \
    EXPORT CUresult name##_ptsz parameters                                                                             \
    {                                                                                                                  \
        return name arguments;                                                                                         \
    }
#define PTDS(name, parameters, arguments)                                                                              \
    EXPORT CUresult name##_ptds parameters                                                                             \
    {                                                                                                                  \
        return name arguments;                                                                                         \
    }
#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* clang-format off */
PTSZ(cuLaunchKernel,
     (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream s, void **params, void **extra),
     (f, gx, gy, gz, bx, by, bz, shared, OWN(s), params, extra))
PTSZ(cuLaunchCooperativeKernel,
     (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream s, void **params),
     (f, gx, gy, gz, bx, by, bz, shared, OWN(s), params))
EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    CUlaunchConfig own_config = *config;
    own_config.hStream = OWN(own_config.hStream);
    return cuLaunchKernelEx(&own_config, f, params, extra);
}
PTSZ(cuLaunchHostFunc, (CUstream s, CUhostFn fn, void *argument), (OWN(s), fn, argument))
PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream s), (exec, OWN(s)))
PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream s), (exec, OWN(s)))
PTSZ(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
     (exec, graph, params))
PTSZ(cuStreamQuery, (CUstream s), (OWN(s)))
PTSZ(cuStreamSynchronize, (CUstream s), (OWN(s)))
PTSZ(cuStreamWaitEvent, (CUstream s, CUevent event, unsigned flags), (OWN(s), event, flags))
PTSZ(cuStreamAddCallback, (CUstream s, CUstreamCallback callback, void *argument, unsigned flags),
     (OWN(s), callback, argument, flags))
PTSZ(cuStreamGetPriority, (CUstream s, int *priority), (OWN(s), priority))
PTSZ(cuStreamGetFlags, (CUstream s, unsigned *flags), (OWN(s), flags))
PTSZ(cuStreamGetId, (CUstream s, unsigned long long *id), (OWN(s), id))
PTSZ(cuStreamGetDevice, (CUstream s, CUdevice *device), (OWN(s), device))
PTSZ(cuStreamGetCtx, (CUstream s, CUcontext *context), (OWN(s), context))
PTSZ(cuStreamGetCtx_v2, (CUstream s, CUcontext *context, CUgreenCtx *green), (OWN(s), context, green))
PTSZ(cuStreamWaitValue32_v2, (CUstream s, CUdeviceptr address, uint32_t value, unsigned flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamWaitValue64_v2, (CUstream s, CUdeviceptr address, uint64_t value, unsigned flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamWriteValue32_v2, (CUstream s, CUdeviceptr address, uint32_t value, unsigned flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamWriteValue64_v2, (CUstream s, CUdeviceptr address, uint64_t value, unsigned flags),
     (OWN(s), address, value, flags))
PTSZ(cuMemMapArrayAsync, (CUarrayMapInfo * infos, unsigned count, CUstream s), (infos, count, OWN(s)))
PTSZ(cuStreamIsCapturing, (CUstream s, CUstreamCaptureStatus *status), (OWN(s), status))
PTSZ(cuStreamBeginCapture, (CUstream s), (OWN(s)))
PTSZ(cuStreamBeginCapture_v2, (CUstream s, CUstreamCaptureMode mode), (OWN(s), mode))
PTSZ(cuStreamBeginRecaptureToGraph,
     (CUstream s, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data),
     (OWN(s), mode, graph, callback, data))
PTSZ(cuStreamEndCapture, (CUstream s, CUgraph *graph), (OWN(s), graph))
PTSZ(cuStreamGetCaptureInfo, (CUstream s, CUstreamCaptureStatus *status, uint64_t *id), (OWN(s), status, id))
PTSZ(cuStreamGetCaptureInfo_v2,
     (CUstream s, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **needs,
      size_t *count),
     (OWN(s), status, id, graph, needs, count))
PTSZ(cuStreamGetCaptureInfo_v3,
     (CUstream s, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **needs,
      const CUgraphEdgeData **edges, size_t *count),
     (OWN(s), status, id, graph, needs, edges, count))
PTSZ(cuStreamUpdateCaptureDependencies, (CUstream s, CUgraphNode *needs, size_t count, unsigned flags),
     (OWN(s), needs, count, flags))
PTSZ(cuEventRecord, (CUevent event, CUstream s), (event, OWN(s)))
PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream s, unsigned flags), (event, OWN(s), flags))
PTSZ(cuMemAllocAsync, (CUdeviceptr * pointer, size_t size, CUstream s), (pointer, size, OWN(s)))
PTSZ(cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t size, CUmemoryPool pool, CUstream s),
     (pointer, size, pool, OWN(s)))
PTSZ(cuMemFreeAsync, (CUdeviceptr pointer, CUstream s), (pointer, OWN(s)))
PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s), (to, from, size, OWN(s)))
PTSZ(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t size, CUstream s),
     (to, tc, from, fc, size, OWN(s)))
PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream s), (to, from, size, OWN(s)))
PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream s), (to, from, size, OWN(s)))
PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s), (to, from, size, OWN(s)))
PTSZ(cuMemcpyHtoAAsync_v2, (CUarray to, size_t offset, const void *from, size_t size, CUstream s),
     (to, offset, from, size, OWN(s)))
PTSZ(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t offset, size_t size, CUstream s),
     (to, from, offset, size, OWN(s)))
PTSZ(cuMemcpyBatchAsync,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *indices,
      size_t attribute_count, size_t *failed, CUstream s),
     (to, from, sizes, count, attributes, indices, attribute_count, failed, OWN(s)))
PTSZ(cuMemcpyBatchAsync_v2,
     (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *indices,
      size_t attribute_count, CUstream s),
     (to, from, sizes, count, attributes, indices, attribute_count, OWN(s)))
PTSZ(cuMemcpyWithAttributesAsync,
     (CUdeviceptr to, CUdeviceptr from, size_t size, CUmemcpyAttributes *attributes, CUstream s),
     (to, from, size, attributes, OWN(s)))
PTSZ(cuMemPrefetchAsync, (CUdeviceptr pointer, size_t size, CUdevice to, CUstream s), (pointer, size, to, OWN(s)))
PTSZ(cuMemPrefetchAsync_v2, (CUdeviceptr pointer, size_t size, CUmemLocation to, unsigned flags, CUstream s),
     (pointer, size, to, flags, OWN(s)))
PTSZ(cuMemPrefetchBatchAsync,
     (CUdeviceptr * pointers, size_t *sizes, size_t count, CUmemLocation *to, size_t *indices, size_t locations,
      unsigned long long flags, CUstream s),
     (pointers, sizes, count, to, indices, locations, flags, OWN(s)))
PTSZ(cuMemDiscardAndPrefetchBatchAsync,
     (CUdeviceptr * pointers, size_t *sizes, size_t count, CUmemLocation *to, size_t *indices, size_t locations,
      unsigned long long flags, CUstream s),
     (pointers, sizes, count, to, indices, locations, flags, OWN(s)))
PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream s), (copy, OWN(s)))
PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream s), (copy, OWN(s)))
PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream s), (copy, OWN(s)))
PTSZ(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream s), (to, value, count, OWN(s)))
PTSZ(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream s), (to, value, count, OWN(s)))
PTSZ(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream s), (to, value, count, OWN(s)))
PTSZ(cuMemsetD2D8Async, (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream s),
     (to, pitch, value, width, height, OWN(s)))
PTSZ(cuMemsetD2D16Async, (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream s),
     (to, pitch, value, width, height, OWN(s)))
PTSZ(cuMemsetD2D32Async, (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream s),
     (to, pitch, value, width, height, OWN(s)))

PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size))
PTDS(cuMemcpyPeer, (CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t size),
     (to, tc, from, fc, size))
PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size), (to, from, size))
PTDS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size), (to, from, size))
PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t size), (to, from, size))
PTDS(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t size), (to, offset, from, size))
PTDS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t size), (to, from, offset, size))
PTDS(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void *from, size_t size), (to, offset, from, size))
PTDS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t offset, size_t size), (to, from, offset, size))
PTDS(cuMemcpyAtoA_v2, (CUarray to, size_t at, CUarray from, size_t offset, size_t size), (to, at, from, offset, size))
PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy))
PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), (copy))
PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), (copy))
PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), (copy))
PTDS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
PTDS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), (to, value, count))
PTDS(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count), (to, value, count))
PTDS(cuMemsetD2D8_v2, (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
     (to, pitch, value, width, height))
PTDS(cuMemsetD2D16_v2, (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
     (to, pitch, value, width, height))
PTDS(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
     (to, pitch, value, width, height))
/* clang-format on */

/* cuGetProcAddress: a name without suffix and the CUDA version that the caller was built for give the function of
 * that version. The list of functions is this library's own symbol table. */

static const struct {
    const char *name;
    int since;
    const char *exported;
} forms[] = {
    /* functions that do not follow "_v2 since 4.0"; newest first */
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxGetDevice", 2000, "cuCtxGetDevice"},
    {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuCtxSynchronize", 2000, "cuCtxSynchronize"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGraphAddKernelNode", 12000, "cuGraphAddKernelNode_v2"},
    {"cuGraphAddKernelNode", 10000, "cuGraphAddKernelNode"},
    {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"},
    {"cuGraphAddNode", 12020, "cuGraphAddNode"},
    {"cuGraphExecKernelNodeSetParams", 12000, "cuGraphExecKernelNodeSetParams_v2"},
    {"cuGraphExecKernelNodeSetParams", 10010, "cuGraphExecKernelNodeSetParams"},
    {"cuGraphExecUpdate", 12000, "cuGraphExecUpdate_v2"},
    {"cuGraphExecUpdate", 10020, "cuGraphExecUpdate"},
    {"cuGraphGetEdges", 12030, "cuGraphGetEdges_v2"},
    {"cuGraphGetEdges", 10000, "cuGraphGetEdges"},
    {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    {"cuGraphInstantiate", 10000, "cuGraphInstantiate"},
    {"cuGraphKernelNodeGetParams", 12000, "cuGraphKernelNodeGetParams_v2"},
    {"cuGraphKernelNodeSetParams", 12000, "cuGraphKernelNodeSetParams_v2"},
    {"cuGraphKernelNodeSetParams", 10000, "cuGraphKernelNodeSetParams"},
    {"cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2"},
    {"cuIpcOpenMemHandle", 4010, "cuIpcOpenMemHandle"},
    {"cuMemPrefetchAsync", 13000, "cuMemPrefetchAsync_v2"},
    {"cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync"},
    {"cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2"},
    {"cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamBeginCapture", 10000, "cuStreamBeginCapture"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"},
    {"cuStreamGetCtx", 9020, "cuStreamGetCtx"},
};

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

/* Where an exported name lives. Not dlsym: a library preloaded in front of the driver may stand in its way. */
void *entry_exported(const char *name)
{
    uintptr_t load_address = (uintptr_t)__ehdr_start, addresses[DT_NUM] = {0};
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag < DT_NUM) /* the loader may or may not have added the base already */
            addresses[entry->d_tag] = entry->d_un.d_ptr < load_address ? entry->d_un.d_ptr + load_address
                                                                       : entry->d_un.d_ptr;
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)addresses[DT_SYMTAB];
    const char *names = (const char *)addresses[DT_STRTAB];
    uint32_t count = ((const uint32_t *)addresses[DT_HASH])[1];
    for (uint32_t i = 1; i < count; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && !strcmp(names + symbols[i].st_name, name))
            return (void *)(load_address + symbols[i].st_value);
    return NULL;
}

/* The exported name of a plain one. NULL: it is newer than cuda_version. */
static const char *form_of(const char *name, int version, char second_name[128])
{
    bool is_listed = false;
    for (unsigned i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(forms[i].name, name)) {
            is_listed = true;
            if (version >= forms[i].since)
                return forms[i].exported;
        }
    snprintf(second_name, 128, "%s_v2", name);
    return is_listed ? NULL : version >= 4000 && entry_exported(second_name) ? second_name : name;
}

static CUresult resolve(const char *name, int version, uint64_t flags, void **function,
                        CUdriverProcAddressQueryResult *status)
{
    char second_name[128], variant_name[136];
    if (!name || !function || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    const char *form = form_of(name, version, second_name);
    *function = NULL;
    if (form && flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        for (int i = 0; i < 2 && !*function; i++) {
            snprintf(variant_name, sizeof variant_name, "%s%s", form, i ? "_ptds" : "_ptsz");
            *function = entry_exported(variant_name);
        }
    if (form && !*function)
        *function = entry_exported(form);
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
                  : form    ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                            : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return resolve(name, version, flags, function, NULL);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    return resolve(name, version, flags, function, status);
}
PTSZ(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags),
     (name, function, version, flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
PTSZ(cuGetProcAddress_v2,
     (const char *name, void **function, int version, uint64_t flags, CUdriverProcAddressQueryResult *status),
     (name, function, version, flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status))

EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND; /* the undocumented ones have no fake */
}

/* Errors. */

#define ERRORS(each)                                                                                                           \
    each(CUDA_SUCCESS, "no error") each(CUDA_ERROR_INVALID_VALUE, "invalid argument") each(                                    \
        CUDA_ERROR_OUT_OF_MEMORY,                                                                                              \
        "out of memory") each(CUDA_ERROR_NOT_INITIALIZED,                                                                      \
                              "initialization error") each(CUDA_ERROR_DEINITIALIZED,                                           \
                                                           "driver shutting down") each(CUDA_ERROR_NO_DEVICE,                  \
                                                                                        "no CUDA-capable device is detected")  \
        each(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal") each(                                                        \
            CUDA_ERROR_INVALID_IMAGE,                                                                                          \
            "device kernel image is invalid") each(CUDA_ERROR_INVALID_CONTEXT,                                                 \
                                                   "invalid device context") each(CUDA_ERROR_MAP_FAILED,                       \
                                                                                  "mapping of buffer object failed")           \
            each(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture") each(                            \
                CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,                                                                            \
                "peer access is not supported between these two devices") each(CUDA_ERROR_FILE_NOT_FOUND,                      \
                                                                               "file not found")                               \
                each(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS") each(                \
                    CUDA_ERROR_INVALID_HANDLE,                                                                                 \
                    "invalid resource handle") each(CUDA_ERROR_ILLEGAL_STATE,                                                  \
                                                    "the operation cannot be performed in the present state")                  \
                    each(CUDA_ERROR_NOT_FOUND, "named symbol not found") each(                                                 \
                        CUDA_ERROR_NOT_READY,                                                                                  \
                        "device not ready") each(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,                                    \
                                                 "part or all of the requested memory range is already mapped")                \
                        each(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,                                                            \
                             "pointer does not correspond to a registered memory region")                                      \
                            each(CUDA_ERROR_NOT_SUPPORTED,                                                                     \
                                 "operation not supported") each(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,                        \
                                                                 "operation not permitted when stream is capturing")           \
                                each(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                    \
                                     "operation failed due to a previous error during capture")                                \
                                    each(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,                                                  \
                                         "operation would result in a merge of separate capture sequences")                    \
                                        each(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,                                              \
                                             "dependency created on uncaptured work in another stream")                        \
                                            each(                                                                              \
                                                CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,                                            \
                                                "operation would make the legacy stream depend on a capturing stream")         \
                                                each(                                                                          \
                                                    CUDA_ERROR_CAPTURED_EVENT,                                                 \
                                                    "operation not permitted on an event last recorded in a capturing stream") \
                                                    each(CUDA_ERROR_NO_BINARY_FOR_GPU,                                         \
                                                         "no kernel image is available for execution on the device")           \
                                                        each(CUDA_ERROR_UNKNOWN, "unknown error")

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
#define NAME(code, text)                                                                                               \
    case code: *name = #code; return CUDA_SUCCESS;
    switch (error) {
        ERRORS(NAME)
    default: *name = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
#define TEXT(code, words)                                                                                              \
    case code: *text = words; return CUDA_SUCCESS;
    switch (error) {
        ERRORS(TEXT)
    default: *text = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
}
