/* Inside the fake acl layer: what it calls of the runtime, besides acl/abi.h. */
#ifndef HETERO_FAKE_ASCEND_ACL_H
#define HETERO_FAKE_ASCEND_ACL_H

#include "ascend_runtime.h"

#include <unistd.h>

enum { /* P */
       ACL_ERROR_INVALID_PARAM = 100000,
       ACL_ERROR_UNINITIALIZE = 100001,
       ACL_ERROR_REPEAT_INITIALIZE = 100002,
       ACL_ERROR_INVALID_MODEL_ID = 100011,
       ACL_ERROR_WAIT_CALLBACK_TIMEOUT = 100036,
       ACL_ERROR_REPEAT_FINALIZE = 100037,
};

/* T, O */
rtError_t rtStreamCreate(rtStream_t *stream, int32_t priority);
rtError_t rtMemcpy(void *to, uint64_t most, const void *from, uint64_t bytes, uint32_t kind);
rtError_t rtMemcpyAsync(void *to, uint64_t most, const void *from, uint64_t bytes, uint32_t kind, rtStream_t stream);
rtError_t rtDevBinaryUnRegister(void *handle);
rtError_t rtRegisterAllKernel(const void *binary, void **handle);
rtError_t rtGetC2cCtrlAddr(uint64_t *address, uint32_t *bytes);
/* O */
rtError_t rtGetVisibleDeviceIdByLogicDeviceId(int32_t logical_id, int32_t *device);
/* F */
rtError_t rtIpcDestroyMemoryName(const char *name);
/* V */
rtError_t rtNotifyCreate(int32_t device, rtNotify_t *notify);
rtError_t rtNotifyDestroy(rtNotify_t notify);

#endif
