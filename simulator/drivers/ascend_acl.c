/* The simulated acl layer. It keeps no books: each function is the runtime's. In CANN 8's shape it is a library of its
 * own, and what it calls of rt* passes symbols. In CANN 9's its functions are `Impl` in libruntime, which is linked to
 * prefer its own symbols, and libascendcl and libacl_rt jump there.
 *
 * What has no usable source (docs/decisions/native-limiters.md) has the arguments of CUDA's function of that kind.
 */
#include "ascend_acl.h"

#include <stdlib.h>
#include <string.h>

#define FORWARD(name, parameters, target, arguments)                                                                   \
    EXPORT aclError name parameters                                                                                    \
    {                                                                                                                  \
        return target arguments;                                                                                       \
    }

/* Start and end: once each, in this order. */

static enum { BEFORE, BETWEEN, AFTER } initialised;

EXPORT aclError aclInit(const char *configuration UNUSED)
{
    if (initialised == BETWEEN)
        return ACL_ERROR_REPEAT_INITIALIZE;
    initialised = BETWEEN;
    return ACL_SUCCESS;
}

EXPORT aclError aclFinalize(void)
{
    if (initialised != BETWEEN)
        return initialised == AFTER ? ACL_ERROR_REPEAT_FINALIZE : ACL_ERROR_UNINITIALIZE;
    initialised = AFTER;
    return ACL_SUCCESS;
}

EXPORT const char *aclGetRecentErrMsg(void)
{
    return NULL;
}

EXPORT aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch)
{
    *major = 1;
    *minor = *patch = 0;
    return ACL_SUCCESS;
}

EXPORT const char *aclrtGetSocName(void)
{
    static char name[sizeof "Ascend" + sizeof((struct fake_npu *)NULL)->model];
    struct fake_npu npu;
    if (fake_rt_device(0, &npu))
        return NULL;
    strcpy(name, "Ascend");
    return strcat(name, npu.model);
}

EXPORT aclError aclrtGetRunMode(int *mode)
{
    *mode = 1; /* P: ACL_HOST */
    return ACL_SUCCESS;
}

/* Settings on which nothing depends here. */
#define SETTING(name)                                                                                                  \
    EXPORT aclError name(void)                                                                                         \
    {                                                                                                                  \
        return ACL_SUCCESS;                                                                                            \
    }
SETTING(aclmdlFinalizeDump)
SETTING(aclmdlInitDump)
SETTING(aclmdlSetDump)
SETTING(aclrtSetDeviceSatMode)
SETTING(aclrtSetOpExecuteTimeOut)
SETTING(aclrtSetOpWaitTimeout)
SETTING(aclrtSetStreamAttribute)
SETTING(aclrtSetStreamFailureMode)
SETTING(aclrtSetStreamOverflowSwitch)
SETTING(aclrtDeviceEnablePeerAccess)
SETTING(aclrtDeviceDisablePeerAccess)
SETTING(aclrtGetLastError)
SETTING(aclrtPeekAtLastError)

/* Options that are told as they were set, of the system and of contexts alike. */
static _Atomic int64_t options[8];

EXPORT aclError aclrtSetSysParamOpt(uint32_t option, int64_t value)
{
    if (option >= sizeof options / sizeof *options)
        return ACL_ERROR_INVALID_PARAM;
    options[option] = value;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetSysParamOpt(uint32_t option, int64_t *value)
{
    if (option >= sizeof options / sizeof *options || !value)
        return ACL_ERROR_INVALID_PARAM;
    *value = options[option];
    return ACL_SUCCESS;
}

FORWARD(aclrtCtxSetSysParamOpt, (uint32_t option, int64_t value), aclrtSetSysParamOpt, (option, value))
FORWARD(aclrtCtxGetSysParamOpt, (uint32_t option, int64_t *value), aclrtGetSysParamOpt, (option, value))

EXPORT aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    struct fake_npu npu;
    if (!can || fake_rt_device(device, &npu) || fake_rt_device(peer, &npu))
        return ACL_ERROR_INVALID_PARAM;
    *can = device != peer;
    return ACL_SUCCESS;
}

/* Devices and contexts. */

FORWARD(aclrtSetDevice, (int32_t device), rtSetDevice, (device))
FORWARD(aclrtResetDevice, (int32_t device), rtDeviceReset, (device))
FORWARD(aclrtResetDeviceForce, (int32_t device), fake_rt_reset, (device, true))
FORWARD(aclrtGetDevice, (int32_t *device), rtGetDevice, (device))
FORWARD(aclrtGetDeviceCount, (uint32_t *count), fake_rt_device_count, (count))
FORWARD(aclrtCreateContext, (aclrtContext * context, int32_t device), rtCtxCreate, (context, 0, device))
FORWARD(aclrtDestroyContext, (aclrtContext context), fake_rt_context_destroy, (context))
FORWARD(aclrtSetCurrentContext, (aclrtContext context), fake_rt_context_set, (context))
FORWARD(aclrtGetCurrentContext, (aclrtContext * context), fake_rt_context_get, (context))
FORWARD(aclrtGetLogicDevIdByUserDevId, (int32_t device, int32_t *logical_id), fake_rt_logical_id, (device, logical_id))
FORWARD(aclrtGetUserDevIdByLogicDevId, (int32_t logical_id, int32_t *device), rtGetVisibleDeviceIdByLogicDeviceId,
        (logical_id, device))

EXPORT aclError aclrtGetPhyDevIdByLogicDevId(int32_t logical_id, int32_t *physical_id)
{
    struct fake_npu npu;
    if (!physical_id || !fake_hal_device((unsigned)logical_id, &npu))
        return ACL_ERROR_INVALID_PARAM;
    *physical_id = (int32_t)npu.physical_id;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *is_active)
{
    if (flags)
        *flags = 0;
    return fake_rt_primary(device, is_active);
}

EXPORT aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid *uuid)
{
    struct fake_npu npu;
    if (!uuid)
        return ACL_ERROR_INVALID_PARAM;
    aclError error = fake_rt_device(device, &npu);
    if (!error)
        memcpy(uuid->bytes, npu.uuid, sizeof uuid->bytes);
    return error;
}

EXPORT aclError aclrtGetDeviceInfo(uint32_t device, uint32_t attribute, int64_t *value)
{
    enum { AICORE_COUNT = 101, VECTOR_CORE_COUNT = 201, TOTAL_MEMORY = 301 }; /* P; two vector cores a cube core */
    struct fake_npu npu;
    if (!value)
        return ACL_ERROR_INVALID_PARAM;
    aclError error = fake_rt_device((int32_t)device, &npu);
    if (error)
        return error;
    switch (attribute) {
    case AICORE_COUNT: *value = npu.core_count; return ACL_SUCCESS;
    case VECTOR_CORE_COUNT: *value = 2 * npu.core_count; return ACL_SUCCESS;
    default: return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    }
}

EXPORT aclError aclrtDeviceGetBareTgid(int32_t *pid)
{
    *pid = getpid();
    return ACL_SUCCESS;
}

/* Memory. */

#define UNIT 32u

/* All cards but the 950 get a unit more, of which nothing is told, unless pages have 1 GiB. */
static size_t padding(aclrtMemMallocPolicy policy)
{
    struct fake_npu npu;
    unsigned pages = policy & 0xff;
    bool is_giant = pages == ACL_MEM_MALLOC_HUGE1G_ONLY || pages == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
    return is_giant || (!fake_rt_device(0, &npu) && !strncmp(npu.model, "950", 3)) ? 0 : UNIT;
}

static aclError allocate(void **pointer, size_t bytes, size_t more, aclrtMemMallocPolicy policy, bool is_cached)
{
    if (!pointer || !bytes || bytes > SIZE_MAX - 2 * UNIT)
        return ACL_ERROR_INVALID_PARAM;
    size_t size = (bytes + UNIT - 1) / UNIT * UNIT + more;
    uint32_t type = (uint32_t)(policy & 0xff) << FAKE_POLICY_SHIFT;
    return (is_cached ? rtMallocCached : rtMalloc)(pointer, size, type, 0);
}

FORWARD(aclrtMalloc, (void **pointer, size_t bytes, aclrtMemMallocPolicy policy), allocate,
        (pointer, bytes, padding(policy), policy, false))
FORWARD(aclrtMallocAlign32, (void **pointer, size_t bytes, aclrtMemMallocPolicy policy), allocate,
        (pointer, bytes, 0, policy, false))
FORWARD(aclrtMallocCached, (void **pointer, size_t bytes, aclrtMemMallocPolicy policy), allocate,
        (pointer, bytes, padding(policy), policy, true))
FORWARD(aclrtMallocWithCfg, (void **pointer, size_t bytes, aclrtMemMallocPolicy policy, void *config UNUSED), allocate,
        (pointer, bytes, padding(policy), policy, false))
FORWARD(aclrtMallocForTaskScheduler, (void **pointer, size_t bytes, aclrtMemMallocPolicy policy, void *config UNUSED),
        allocate, (pointer, bytes, padding(policy), policy, false))
FORWARD(aclrtMemAllocManaged, (void **pointer, uint64_t bytes, uint32_t flag), rtMemAllocManaged,
        (pointer, bytes, flag, 0))

EXPORT aclError aclrtFree(void *pointer)
{
    return pointer ? rtFree(pointer) : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclrtFreeWithDevSync(void *pointer)
{
    aclError error = fake_rt_device_wait(FOREVER);
    return error ? error : aclrtFree(pointer);
}

/* A host's memory has one address for both sides. */
EXPORT aclError aclrtHostRegister(void *pointer, uint64_t bytes, int type UNUSED, void **device_pointer)
{
    if (!pointer || !bytes || !device_pointer)
        return ACL_ERROR_INVALID_PARAM;
    *device_pointer = pointer;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtHostRegisterV2(void *pointer, uint64_t bytes, uint32_t flag UNUSED)
{
    return pointer && bytes ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclrtHostUnregister(void *pointer)
{
    return pointer ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

FORWARD(aclrtMallocHost, (void **pointer, size_t bytes), fake_rt_host_malloc, (pointer, bytes))
FORWARD(aclrtMallocHostWithCfg, (void **pointer, uint64_t bytes, void *config UNUSED), fake_rt_host_malloc,
        (pointer, bytes))
FORWARD(aclrtFreeHost, (void *pointer), fake_rt_host_free, (pointer))
FORWARD(aclrtGetMemInfo, (aclrtMemAttr memory, size_t *free_bytes, size_t *total_bytes), rtMemGetInfoEx,
        (memory, free_bytes, total_bytes))
FORWARD(aclrtMemcpy, (void *to, size_t most, const void *from, size_t bytes, uint32_t kind), rtMemcpy,
        (to, most, from, bytes, kind))
FORWARD(aclrtMemcpyAsync, (void *to, size_t most, const void *from, size_t bytes, uint32_t kind, aclrtStream stream),
        rtMemcpyAsync, (to, most, from, bytes, kind, stream))
FORWARD(aclrtMemset, (void *address, size_t most, int32_t value, size_t bytes), fake_rt_set,
        (address, most, value, bytes, false, NULL))
FORWARD(aclrtMemsetAsync, (void *address, size_t most, int32_t value, size_t bytes, aclrtStream stream), fake_rt_set,
        (address, most, value, bytes, true, stream))

EXPORT aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t bytes, const aclrtPhysicalMemProp *property,
                                    uint64_t flags)
{
    aclrtPhysicalMemProp asked;
    if (!property)
        return ACL_ERROR_INVALID_PARAM;
    asked = *property;
    return rtMallocPhysical(handle, bytes, &asked, flags);
}

FORWARD(aclrtFreePhysical, (aclrtDrvMemHandle handle), fake_rt_physical_free, (handle))
FORWARD(aclrtReserveMemAddress, (void **address, size_t bytes, size_t alignment, void *expected, uint64_t flags),
        fake_rt_reserve, (address, bytes, alignment, expected, flags))
FORWARD(aclrtReleaseMemAddress, (void *address), fake_rt_release, (address))
FORWARD(aclrtMapMem, (void *address, size_t bytes, size_t offset, aclrtDrvMemHandle handle, uint64_t flags),
        fake_rt_map, (address, bytes, offset, handle, flags))
FORWARD(aclrtUnmapMem, (void *address), fake_rt_unmap, (address))
FORWARD(aclrtMemRetainAllocationHandle, (void *address, aclrtDrvMemHandle *handle), fake_rt_retain, (address, handle))
FORWARD(aclrtMemGetAllocationGranularity, (const aclrtPhysicalMemProp *property, uint32_t option, size_t *bytes),
        fake_rt_granularity, (property, option, bytes))
FORWARD(aclrtMemExportToShareableHandle, (aclrtDrvMemHandle handle, uint32_t type, uint64_t flags, uint64_t *shared),
        fake_rt_export, (handle, type, flags, shared))
FORWARD(aclrtMemImportFromShareableHandle, (uint64_t shared, int32_t device, aclrtDrvMemHandle *handle), fake_rt_import,
        (shared, device, handle))

/* Of physical memory it is not checked who imports it. */
EXPORT aclError aclrtMemSetPidToShareableHandle(uint64_t shared UNUSED, int32_t *pids, size_t count)
{
    return pids && count ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count)
{
    return key && pids && count ? fake_rt_share_with(key, pids, count) : ACL_ERROR_INVALID_PARAM;
}

static struct opened { /* a key that was imported here */
    char key[FAKE_NAME_BYTES];
    void *pointer;
    struct opened *next;
} *opened_keys;
static pthread_mutex_t keys_lock = PTHREAD_MUTEX_INITIALIZER; /* guards opened_keys */

EXPORT aclError aclrtIpcMemGetExportKey(void *pointer, size_t bytes, char *key, size_t key_bytes, uint64_t flags)
{
    enum { FOR_ALL = 1 }; /* P: ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION */
    aclError error = rtIpcSetMemoryName(pointer, bytes, key, (uint32_t)key_bytes);
    return !error && flags & FOR_ALL ? fake_rt_share_with(key, NULL, 0) : error;
}

EXPORT aclError aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags UNUSED)
{
    if (!pointer || !key || strlen(key) >= FAKE_NAME_BYTES)
        return ACL_ERROR_INVALID_PARAM;
    aclError error = rtIpcOpenMemory(pointer, key);
    if (error)
        return error;
    struct opened *opened = malloc(sizeof *opened);
    strcpy(opened->key, key);
    opened->pointer = *pointer;
    pthread_mutex_lock(&keys_lock);
    opened->next = opened_keys;
    opened_keys = opened;
    pthread_mutex_unlock(&keys_lock);
    return ACL_SUCCESS;
}

/* Both sides close by the key. */
EXPORT aclError aclrtIpcMemClose(const char *key)
{
    pthread_mutex_lock(&keys_lock);
    struct opened **link = &opened_keys;
    while (*link && key && strcmp((*link)->key, key))
        link = &(*link)->next;
    struct opened *opened = key ? *link : NULL;
    if (opened)
        *link = opened->next;
    pthread_mutex_unlock(&keys_lock);
    aclError error = opened ? rtIpcCloseMemory(opened->pointer) : rtIpcDestroyMemoryName(key);
    free(opened);
    return error;
}

/* Pools. */

EXPORT aclError aclrtMemPoolCreate(void **pool, const void *properties UNUSED)
{
    return fake_rt_pool_create(pool);
}

FORWARD(aclrtMemPoolDestroy, (void *pool), fake_rt_pool_destroy, (pool))
FORWARD(aclrtMemPoolTrimTo, (void *pool, size_t kept_bytes), fake_rt_pool_trim, (pool, kept_bytes))
FORWARD(aclrtMemPoolMallocAsync, (void **pointer, size_t bytes, void *pool, aclrtStream stream), fake_rt_pool_malloc,
        (pointer, bytes, pool, stream))
FORWARD(aclrtMemPoolFreeAsync, (void *pointer, aclrtStream stream), fake_rt_pool_free, (pointer, stream))

/* Of the attributes only one can be set here: the threshold. */
EXPORT aclError aclrtMemPoolSetAttr(void *pool, uint32_t attribute UNUSED, void *value)
{
    uint64_t bytes;
    memcpy(&bytes, value, sizeof bytes);
    return fake_rt_pool_threshold(pool, bytes);
}

/* Streams and events. */

FORWARD(aclrtCreateStream, (aclrtStream * stream), rtStreamCreate, (stream, 0))
FORWARD(aclrtCreateStreamWithConfig, (aclrtStream * stream, uint32_t priority, uint32_t flag UNUSED), rtStreamCreate,
        (stream, (int32_t)priority))
FORWARD(aclrtDestroyStream, (aclrtStream stream), rtStreamDestroy, (stream))
FORWARD(aclrtDestroyStreamForce, (aclrtStream stream), rtDestroyStreamForce, (stream))
FORWARD(aclrtSynchronizeStream, (aclrtStream stream), rtStreamSynchronize, (stream))
FORWARD(aclrtSynchronizeStreamWithTimeout, (aclrtStream stream, int32_t timeout_ms), fake_rt_stream_wait,
        (stream, timeout_ms))
FORWARD(aclrtSynchronizeDevice, (void), fake_rt_device_wait, (FOREVER))
FORWARD(aclrtSynchronizeDeviceWithTimeout, (int32_t timeout_ms), fake_rt_device_wait, (timeout_ms))
FORWARD(aclrtStreamWaitEvent, (aclrtStream stream, aclrtEvent event), rtStreamWaitEvent, (stream, event))
FORWARD(aclrtCreateEvent, (aclrtEvent * event), fake_rt_event_create, (event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE))
FORWARD(aclrtCreateEventWithFlag, (aclrtEvent * event, uint32_t flag), fake_rt_event_create, (event, flag))
FORWARD(aclrtCreateEventExWithFlag, (aclrtEvent * event, uint32_t flag), fake_rt_event_create, (event, flag))
FORWARD(aclrtDestroyEvent, (aclrtEvent event), fake_rt_event_destroy, (event))
FORWARD(aclrtRecordEvent, (aclrtEvent event, aclrtStream stream), rtEventRecord, (event, stream))
FORWARD(aclrtResetEvent, (aclrtEvent event, aclrtStream stream), rtEventReset, (event, stream))
FORWARD(aclrtSynchronizeEvent, (aclrtEvent event), fake_rt_event_wait, (event, FOREVER))
FORWARD(aclrtEventElapsedTime, (float *ms, aclrtEvent start, aclrtEvent end), fake_rt_event_elapsed, (ms, start, end))
FORWARD(aclrtEventGetTimestamp, (aclrtEvent event, uint64_t *us), fake_rt_event_time, (event, us))
FORWARD(aclrtCreateNotify, (void **notify, uint64_t flag UNUSED), rtNotifyCreate, (0, notify))
FORWARD(aclrtDestroyNotify, (void *notify), rtNotifyDestroy, (notify))
FORWARD(aclrtRecordNotify, (void *notify, aclrtStream stream), rtNotifyRecord, (notify, stream))
FORWARD(aclrtWaitAndResetNotify, (void *notify, aclrtStream stream, uint32_t timeout), rtNotifyWaitWithTimeOut,
        (notify, stream, timeout))
FORWARD(aclrtValueWrite, (void *address, uint64_t value, uint32_t flag, aclrtStream stream), fake_rt_word,
        (address, value, flag, stream, false))
FORWARD(aclrtValueWait, (void *address, uint64_t value, uint32_t flag, aclrtStream stream), fake_rt_word,
        (address, value, flag, stream, true))
FORWARD(aclrtLaunchHostFunc, (aclrtStream stream, void (*function)(void *), void *argument), fake_rt_call,
        (stream, function, argument))
FORWARD(aclrtCtxGetCurrentDefaultStream, (aclrtStream * stream), fake_rt_default_stream, (stream))
FORWARD(aclrtStreamGetId, (aclrtStream stream, int32_t *id), fake_rt_stream_id, (stream, id))
FORWARD(aclrtGetHardwareSyncAddr, (void **address), rtGetC2cCtrlAddr, ((uint64_t *)address, &(uint32_t){0}))
FORWARD(aclrtCmoAsync, (void *address, size_t bytes, uint32_t kind, aclrtStream stream), rtCmoAddrTaskLaunch,
        (address, bytes, kind, stream, 0))

EXPORT aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)
{
    bool is_done;
    if (!status)
        return ACL_ERROR_INVALID_PARAM;
    aclError error = fake_rt_stream_query(stream, &is_done);
    if (!error)
        *status = is_done ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return error;
}

EXPORT aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status)
{
    bool is_done;
    if (!status)
        return ACL_ERROR_INVALID_PARAM;
    aclError error = fake_rt_event_query(event, &is_done);
    if (!error)
        *status = is_done ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return error;
}

/* P: this older one has the numbers the other way round. */
EXPORT aclError aclrtQueryEvent(aclrtEvent event, int *status)
{
    aclrtEventRecordedStatus recorded;
    aclError error = aclrtQueryEventStatus(event, &recorded);
    if (!error)
        *status = recorded == ACL_EVENT_RECORDED_STATUS_COMPLETE ? 0 : 1;
    return error;
}

/* Kernels. */

EXPORT aclError aclrtBinaryLoadFromData(const void *data, size_t bytes, const void *options UNUSED, void **binary)
{
    struct {
        uint32_t magic, version;
        const void *data;
        uint64_t size_bytes;
    } description = {.data = data, .size_bytes = bytes};
    return rtRegisterAllKernel(&description, binary);
}

FORWARD(aclrtBinaryUnLoad, (void *binary), rtDevBinaryUnRegister, (binary))
FORWARD(aclrtBinaryGetFunction, (void *binary, const char *name, void **function), fake_rt_binary_function,
        (binary, name, function))
FORWARD(aclrtLaunchKernel,
        (aclrtFuncHandle function, uint32_t blocks, const void *arguments, size_t bytes, aclrtStream stream),
        rtsLaunchKernelWithDevArgs, (function, blocks, stream, NULL, arguments, (uint32_t)bytes, NULL))
FORWARD(aclrtLaunchKernelV2,
        (aclrtFuncHandle function, uint32_t blocks, const void *arguments, size_t bytes, void *config,
         aclrtStream stream),
        rtsLaunchKernelWithDevArgs, (function, blocks, stream, config, arguments, (uint32_t)bytes, NULL))
FORWARD(aclrtLaunchKernelWithConfig,
        (aclrtFuncHandle function, uint32_t blocks, aclrtStream stream, void *config, aclrtArgsHandle arguments,
         void *reserved),
        rtsLaunchKernelWithConfig, (function, blocks, stream, config, arguments, reserved))
FORWARD(aclrtLaunchKernelWithHostArgs,
        (aclrtFuncHandle function, uint32_t blocks, aclrtStream stream, void *config, void *arguments, size_t bytes,
         void *holders, size_t holder_count),
        rtsLaunchKernelWithHostArgs,
        (function, blocks, stream, config, arguments, (uint32_t)bytes, holders, (uint32_t)holder_count))
FORWARD(aclrtKernelArgsInit, (void *function UNUSED, void **handle), fake_rt_arguments, (handle))
FORWARD(aclrtKernelArgsAppend, (void *handle, void *bytes, size_t size, void **parameter UNUSED),
        fake_rt_arguments_append, (handle, bytes, size))

EXPORT aclError aclrtKernelArgsFinalize(void *handle UNUSED)
{
    return ACL_SUCCESS;
}

/* Models and captures. */

FORWARD(aclmdlRICaptureBegin, (aclrtStream stream, aclmdlRICaptureMode mode), rtStreamBeginCapture, (stream, mode))
FORWARD(aclmdlRICaptureEnd, (aclrtStream stream, aclmdlRI *model), rtStreamEndCapture, (stream, model))
FORWARD(aclmdlRICaptureGetInfo, (aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *model),
        fake_rt_capture_info, (stream, status, model))
FORWARD(aclmdlRICaptureThreadExchangeMode, (aclmdlRICaptureMode * mode), fake_rt_capture_mode, (mode))
FORWARD(aclmdlRICaptureTaskGrpBegin, (aclrtStream stream), fake_rt_group, (stream, NULL, false, false))
FORWARD(aclmdlRICaptureTaskGrpEnd, (aclrtStream stream, aclrtTaskGrp *group), fake_rt_group,
        (stream, group, false, true))
FORWARD(aclmdlRICaptureTaskUpdateBegin, (aclrtStream stream, aclrtTaskGrp group), fake_rt_group,
        (stream, &group, true, false))
FORWARD(aclmdlRICaptureTaskUpdateEnd, (aclrtStream stream), fake_rt_group, (stream, NULL, true, true))
FORWARD(aclmdlRIExecuteAsync, (aclmdlRI model, aclrtStream stream), rtModelExecuteAsync, (model, stream, 0))
FORWARD(aclmdlRIExecute, (aclmdlRI model, int32_t timeout_ms), rtsModelExecute, (model, timeout_ms))
FORWARD(aclmdlRIDestroy, (aclmdlRI model), fake_rt_model_destroy, (model))
