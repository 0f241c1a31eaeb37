/* Ascend's ABI as the limiter meets it: our own declarations of what libascendcl.so (or libacl_rt.so) and libruntime.so
 * export. No header of CANN was used: its licence is for Huawei's processors alone. The comment above a group has the
 * keys of its sources, as docs/decisions/native-limiters.md lists them. What has no source there is not declared here.
 *
 * Structures that only pass through are void. Sizes are bytes, handles pointers, and 0 is success in both layers.
 */
#ifndef HETERO_ACL_ABI_H
#define HETERO_ACL_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int aclError;
typedef int32_t rtError_t;
typedef void *aclrtStream, *aclrtEvent, *aclrtContext, *aclrtDrvMemHandle, *aclmdlRI, *aclrtTaskGrp;
typedef void *aclrtFuncHandle, *aclrtArgsHandle;
typedef void *rtStream_t, *rtEvent_t, *rtNotify_t, *rtCntNotify_t, *rtModel_t, *rtDrvMemHandle;

/* P */
enum {
    ACL_SUCCESS = 0,
    ACL_ERROR_RT_PARAM_INVALID = 107000,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_RT_INVALID_HANDLE = 107017,
    ACL_ERROR_RT_STREAM_CAPTURED = 107027,
    ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT = 107030,
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001, /* the only code that torch_npu takes for OutOfMemoryError */
};

/* P, I. The flags from 0x100 on are ORed to a policy. */
typedef enum {
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEM_MALLOC_HUGE_ONLY,
    ACL_MEM_MALLOC_NORMAL_ONLY,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P,
    ACL_MEM_MALLOC_HUGE_ONLY_P2P,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
    ACL_MEM_MALLOC_HUGE1G_ONLY,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
    ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x100,
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000,
    ACL_MEM_ACCESS_USER_SPACE_READONLY = 0x100000,
} aclrtMemMallocPolicy;

/* P, I. With V, the runtime's kinds are the same numbers. */
typedef enum {
    ACL_DDR_MEM,
    ACL_HBM_MEM,
    ACL_DDR_MEM_HUGE,
    ACL_DDR_MEM_NORMAL,
    ACL_HBM_MEM_HUGE,
    ACL_HBM_MEM_NORMAL,
    ACL_DDR_MEM_P2P_HUGE,
    ACL_DDR_MEM_P2P_NORMAL,
    ACL_HBM_MEM_P2P_HUGE,
    ACL_HBM_MEM_P2P_NORMAL,
    ACL_HBM_MEM_HUGE1G,
    ACL_HBM_MEM_P2P_HUGE1G,
} aclrtMemAttr;

/* P */
typedef enum { ACL_EVENT_RECORDED_STATUS_NOT_READY, ACL_EVENT_RECORDED_STATUS_COMPLETE } aclrtEventRecordedStatus;
typedef enum { ACL_STREAM_STATUS_COMPLETE, ACL_STREAM_STATUS_NOT_READY } aclrtStreamStatus;
typedef enum {
    ACL_MODEL_RI_CAPTURE_MODE_GLOBAL,
    ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL,
    ACL_MODEL_RI_CAPTURE_MODE_RELAXED,
} aclmdlRICaptureMode;
typedef enum {
    ACL_MODEL_RI_CAPTURE_STATUS_NONE,
    ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE,
    ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED,
} aclmdlRICaptureStatus;
#define ACL_EVENT_SYNC      0x01u
#define ACL_EVENT_TIME_LINE 0x08u

/* P, I */
enum { ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE };
typedef struct {
    uint32_t handle_type, allocation_type, memory; /* aclrtMemAttr */
    uint32_t device, location_type;
    uint64_t reserved;
} aclrtPhysicalMemProp;

/* P */
typedef struct {
    char bytes[16];
} aclrtUuid;

/* Memory. */

/* P, M, I */
aclError aclrtMalloc(void **pointer, size_t bytes, aclrtMemMallocPolicy policy);
aclError aclrtFree(void *pointer);
/* P, T */
aclError aclrtMallocAlign32(void **pointer, size_t bytes, aclrtMemMallocPolicy policy);
/* P, I */
aclError aclrtMallocCached(void **pointer, size_t bytes, aclrtMemMallocPolicy policy);
/* I */
aclError aclrtMallocWithCfg(void **pointer, size_t bytes, aclrtMemMallocPolicy policy, void *config);
aclError aclrtMallocForTaskScheduler(void **pointer, size_t bytes, aclrtMemMallocPolicy policy, void *config);
/* P, M, I */
aclError aclrtGetMemInfo(aclrtMemAttr memory, size_t *free_bytes, size_t *total_bytes);
/* P, T, M, I */
aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t bytes, const aclrtPhysicalMemProp *property,
                             uint64_t flags);
aclError aclrtFreePhysical(aclrtDrvMemHandle handle);
/* P, T, M */
aclError aclrtMapMem(void *address, size_t bytes, size_t offset, aclrtDrvMemHandle handle, uint64_t flags);
aclError aclrtUnmapMem(void *address);
/* T, M, I */
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, uint32_t type, uint64_t flags, uint64_t *shared);
aclError aclrtMemImportFromShareableHandle(uint64_t shared, int32_t device, aclrtDrvMemHandle *handle);
/* T */
aclError aclrtIpcMemGetExportKey(void *pointer, size_t bytes, char *key, size_t key_bytes, uint64_t flags);
aclError aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags);
aclError aclrtIpcMemClose(const char *key);

/* V */
rtError_t rtMalloc(void **pointer, uint64_t bytes, uint32_t type, uint16_t module);
rtError_t rtMallocCached(void **pointer, uint64_t bytes, uint32_t type, uint16_t module);
rtError_t rtDvppMalloc(void **pointer, uint64_t bytes, uint16_t module);
rtError_t rtDvppMallocWithFlag(void **pointer, uint64_t bytes, uint32_t flag, uint16_t module);
rtError_t rtMemAlloc(void **pointer, uint64_t bytes, uint32_t policy, uint32_t advice, void *config);
rtError_t rtMemAllocManaged(void **pointer, uint64_t bytes, uint32_t flag, uint16_t module);
rtError_t rtMallocPhysical(rtDrvMemHandle *handle, size_t bytes, void *property, uint64_t flags);
rtError_t rtMemGetInfoEx(aclrtMemAttr memory, size_t *free_bytes, size_t *total_bytes);
/* T, O */
rtError_t rtFree(void *pointer);
/* F */
rtError_t rtIpcSetMemoryName(const void *pointer, uint64_t bytes, char *name, uint32_t name_bytes);
rtError_t rtIpcOpenMemory(void **pointer, const char *name);
rtError_t rtIpcCloseMemory(const void *pointer);

/* Devices and contexts: the current one is the thread's. */

/* P, M, I */
aclError aclrtSetDevice(int32_t device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtGetDevice(int32_t *device);
aclError aclrtCreateContext(aclrtContext *context, int32_t device);
aclError aclrtDestroyContext(aclrtContext context);
/* P, M */
aclError aclrtGetDeviceCount(uint32_t *count);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtGetCurrentContext(aclrtContext *context);
/* P, T */
aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid *uuid);
/* T */
aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *is_active);
/* T, I */
aclError aclrtGetLogicDevIdByUserDevId(int32_t user_id, int32_t *logical_id);

/* V */
rtError_t rtSetDevice(int32_t device);
rtError_t rtSetDeviceEx(int32_t device);
rtError_t rtSetDeviceWithoutTsd(int32_t device);
rtError_t rtSetDeviceWithFlags(int32_t device, uint64_t flags);
/* T, O */
rtError_t rtDeviceReset(int32_t device);
/* O */
rtError_t rtGetDevice(int32_t *device);
rtError_t rtCtxCreate(void **context, uint32_t flags, int32_t device);

/* Streams, events and waits. */

/* P, I */
aclError aclrtCreateStream(aclrtStream *stream);
/* P, M */
aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtDestroyStreamForce(aclrtStream stream);
aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent start, aclrtEvent end);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout_ms);
aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);
/* P, T */
aclError aclrtSynchronizeDevice(void);
aclError aclrtValueWrite(void *address, uint64_t value, uint32_t flag, aclrtStream stream);
aclError aclrtValueWait(void *address, uint64_t value, uint32_t flag, aclrtStream stream);
/* T */
aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms);

/* V */
rtError_t rtStreamDestroy(rtStream_t stream);
rtError_t rtDestroyStreamForce(rtStream_t stream);
rtError_t rtStreamWaitEvent(rtStream_t stream, rtEvent_t event);
rtError_t rtStreamWaitEventWithTimeout(rtStream_t stream, rtEvent_t event, uint32_t timeout);
rtError_t rtEventRecord(rtEvent_t event, rtStream_t stream);
rtError_t rtEventReset(rtEvent_t event, rtStream_t stream);
rtError_t rtNotifyRecord(rtNotify_t notify, rtStream_t stream);
rtError_t rtNotifyWait(rtNotify_t notify, rtStream_t stream);
rtError_t rtNotifyWaitWithTimeOut(rtNotify_t notify, rtStream_t stream, uint32_t timeout);
rtError_t rtsNotifyWaitAndReset(rtNotify_t notify, rtStream_t stream, uint32_t timeout);
rtError_t rtCntNotifyRecord(rtCntNotify_t notify, rtStream_t stream, const void *record);
rtError_t rtCntNotifyWaitWithTimeout(rtCntNotify_t notify, rtStream_t stream, const void *wait);
rtError_t rtsCntNotifyRecord(rtCntNotify_t notify, rtStream_t stream, void *record);
rtError_t rtsCntNotifyWaitWithTimeout(rtCntNotify_t notify, rtStream_t stream, void *wait);
/* T, V, O */
rtError_t rtStreamSynchronize(rtStream_t stream);

/* Kernels. */

/* I */
aclError aclrtLaunchKernel(aclrtFuncHandle function, uint32_t blocks, const void *arguments, size_t bytes,
                           aclrtStream stream);
aclError aclrtLaunchKernelV2(aclrtFuncHandle function, uint32_t blocks, const void *arguments, size_t bytes,
                             void *config, aclrtStream stream);
/* S, I */
aclError aclrtLaunchKernelWithConfig(aclrtFuncHandle function, uint32_t blocks, aclrtStream stream, void *config,
                                     aclrtArgsHandle arguments, void *reserved);
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle function, uint32_t blocks, aclrtStream stream, void *config,
                                       void *arguments, size_t bytes, void *holders, size_t holder_count);
/* S */
aclError aclrtLaunchKernelImpl(aclrtFuncHandle function, uint32_t blocks, const void *arguments, size_t bytes,
                               aclrtStream stream);
aclError aclrtLaunchKernelV2Impl(aclrtFuncHandle function, uint32_t blocks, const void *arguments, size_t bytes,
                                 void *config, aclrtStream stream);

/* V, T, S, O */
rtError_t rtKernelLaunch(const void *stub, uint32_t blocks, void *arguments, uint32_t bytes, void *memory,
                         rtStream_t stream);
/* V, T */
rtError_t rtKernelLaunchWithFlag(const void *stub, uint32_t blocks, void *arguments, void *memory, rtStream_t stream,
                                 uint32_t flags);
/* V, S, O */
rtError_t rtKernelLaunchWithFlagV2(const void *stub, uint32_t blocks, void *arguments, void *memory, rtStream_t stream,
                                   uint32_t flags, const void *config);
rtError_t rtKernelLaunchWithHandleV2(void *handle, uint64_t key, uint32_t blocks, void *arguments, void *memory,
                                     rtStream_t stream, const void *config);
/* V, S */
rtError_t rtAicpuKernelLaunchExWithArgs(uint32_t type, const char *operator_name, uint32_t blocks,
                                        const void *arguments, void *memory, rtStream_t stream, uint32_t flags);
rtError_t rtLaunchKernelByFuncHandle(void *function, uint32_t blocks, void *arguments, rtStream_t stream);
rtError_t rtLaunchKernelByFuncHandleV2(void *function, uint32_t blocks, void *arguments, rtStream_t stream,
                                       const void *config);
/* V */
rtError_t rtLaunchKernelByFuncHandleV3(void *function, uint32_t blocks, const void *arguments, rtStream_t stream,
                                       const void *config);
rtError_t rtKernelLaunchWithHandle(void *handle, uint64_t key, uint32_t blocks, void *arguments, void *memory,
                                   rtStream_t stream, const void *kernel);
rtError_t rtKernelLaunchEx(void *arguments, uint32_t bytes, uint32_t flags, rtStream_t stream);
rtError_t rtKernelLaunchFwk(const char *operator_name, void *arguments, uint32_t bytes, uint32_t flags,
                            rtStream_t stream);
rtError_t rtCpuKernelLaunch(const void *library, const void *kernel, uint32_t blocks, const void *arguments,
                            uint32_t bytes, void *memory, rtStream_t stream);
rtError_t rtCpuKernelLaunchWithFlag(const void *library, const void *kernel, uint32_t blocks, const void *arguments,
                                    void *memory, rtStream_t stream, uint32_t flags);
rtError_t rtAicpuKernelLaunch(const void *names, uint32_t blocks, const void *arguments, uint32_t bytes, void *memory,
                              rtStream_t stream);
rtError_t rtAicpuKernelLaunchWithFlag(const void *names, uint32_t blocks, const void *arguments, void *memory,
                                      rtStream_t stream, uint32_t flags);
rtError_t rtVectorCoreKernelLaunch(const void *stub, uint32_t blocks, void *arguments, void *memory, rtStream_t stream,
                                   uint32_t flags, const void *config);
rtError_t rtVectorCoreKernelLaunchWithHandle(void *handle, uint64_t key, uint32_t blocks, void *arguments, void *memory,
                                             rtStream_t stream, const void *config);
rtError_t rtsLaunchKernelWithConfig(void *function, uint32_t blocks, rtStream_t stream, void *config, void *arguments,
                                    void *reserved);
rtError_t rtsLaunchKernelWithDevArgs(void *function, uint32_t blocks, rtStream_t stream, void *config,
                                     const void *arguments, uint32_t bytes, void *reserved);
rtError_t rtsLaunchKernelWithHostArgs(void *function, uint32_t blocks, rtStream_t stream, void *config, void *arguments,
                                      uint32_t bytes, void *holders, uint32_t holder_count);
rtError_t rtsLaunchCpuKernel(void *function, uint32_t blocks, rtStream_t stream, const void *config, void *arguments);
rtError_t rtsLaunchRandomNumTask(const void *task, rtStream_t stream, void *reserved);
rtError_t rtsLaunchReduceAsyncTask(const void *task, rtStream_t stream, const void *reserved);
rtError_t rtsLaunchUpdateTask(rtStream_t target, uint32_t task_id, rtStream_t stream, void *config);

/* Other tasks: of unknown length, but for barriers and what the cache is told. */

/* V */
rtError_t rtFftsPlusTaskLaunch(void *task, rtStream_t stream);
rtError_t rtFftsPlusTaskLaunchWithFlag(void *task, rtStream_t stream, uint32_t flag);
rtError_t rtFftsTaskLaunch(void *task, rtStream_t stream);
rtError_t rtFftsTaskLaunchWithFlag(void *task, rtStream_t stream, uint32_t flag);
rtError_t rtStarsTaskLaunch(const void *entry, uint32_t bytes, rtStream_t stream);
rtError_t rtStarsTaskLaunchWithFlag(const void *entry, uint32_t bytes, rtStream_t stream, uint32_t flag);
rtError_t rtMultipleTaskInfoLaunch(const void *task, rtStream_t stream);
rtError_t rtMultipleTaskInfoLaunchWithFlag(const void *task, rtStream_t stream, uint32_t flag);
rtError_t rtCmoTaskLaunch(void *task, rtStream_t stream, uint32_t flag);
rtError_t rtCmoAddrTaskLaunch(void *addresses, uint64_t bytes, uintptr_t operation, rtStream_t stream, uint32_t flag);
rtError_t rtBarrierTaskLaunch(void *task, rtStream_t stream, uint32_t flag);
/* P, T */
aclError aclrtCmoAsync(void *address, size_t bytes, uint32_t kind, aclrtStream stream);

/* Models and captures. */

/* P */
aclError aclmdlExecute(uint32_t model, const void *input, void *output);
aclError aclmdlExecuteV2(uint32_t model, const void *input, void *output, aclrtStream stream, const void *config);
aclError aclmdlExecuteAsync(uint32_t model, const void *input, void *output, aclrtStream stream);
aclError aclmdlExecuteAsyncV2(uint32_t model, const void *input, void *output, aclrtStream stream, const void *config);
/* P, T */
aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream);
aclError aclmdlRIDestroy(aclmdlRI model);
aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode);
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *model);
aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *model);
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode);
aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream);
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp *group);
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp group);
/* P */
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream);

/* V */
rtError_t rtModelExecute(rtModel_t model, rtStream_t stream, uint32_t flag);
rtError_t rtModelExecuteAsync(rtModel_t model, rtStream_t stream, uint32_t flag);
rtError_t rtModelExecuteSync(rtModel_t model, rtStream_t stream, uint32_t flag, int32_t timeout_ms);
rtError_t rtsModelExecute(rtModel_t model, int32_t timeout_ms);
rtError_t rtsModelExecuteAsync(rtModel_t model, rtStream_t stream);
rtError_t rtStreamBeginCapture(rtStream_t stream, aclmdlRICaptureMode mode);
rtError_t rtStreamEndCapture(rtStream_t stream, rtModel_t *model);

#endif
