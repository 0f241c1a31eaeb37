/* Ascend's names for the types and values that the bodies of ../shared use. */
#ifndef HETERO_ACL_TYPES_H
#define HETERO_ACL_TYPES_H

#include "abi.h"

#include <stdbool.h>

typedef aclError result_t;
typedef aclrtStream stream_t;
typedef int32_t device_t;
typedef uint32_t device_count_t;
typedef aclrtEvent event_t;
typedef void *context_t, *pointer_t;

#define FUNCTION(name) aclrt##name
#define TYPE(name)     acl_##name
#define VALUE(name)    ACL_VALUE_##name
#define ERROR(name)    ACL_ANSWER_##name

#define OUTPUT_TYPES(output) output(void *)

/* Ascend's names where CUDA's differ by more than the prefix. */
#define aclrtDeviceGetCount                  aclrtGetDeviceCount
#define aclrtEventCreate                     aclrtCreateEventExWithFlag
#define aclrtEventDestroy_v2                 aclrtDestroyEvent
#define aclrtEventRecord                     aclrtRecordEvent
#define aclrtStreamIsCapturing               aclmdlRICaptureGetInfo
#define aclrtThreadExchangeStreamCaptureMode aclmdlRICaptureThreadExchangeMode
typedef aclmdlRICaptureMode acl_streamCaptureMode;
typedef aclmdlRICaptureStatus acl_streamCaptureStatus;
typedef aclmdlRI acl_graph;
typedef void acl_graphNode, acl_graphEdgeData;
typedef uint32_t acl_ipcEventHandle;
#define ACL_VALUE_STREAM_CAPTURE_MODE_RELAXED ACL_MODEL_RI_CAPTURE_MODE_RELAXED
#define ACL_VALUE_STREAM_CAPTURE_STATUS_NONE  ACL_MODEL_RI_CAPTURE_STATUS_NONE
#define ACL_VALUE_EVENT_DISABLE_TIMING        ACL_EVENT_SYNC

/* Codes. Those of captures are the ones from the first of them to the last. */
enum {
    ACL_ANSWER_OUT_OF_MEMORY = ACL_ERROR_RT_MEMORY_ALLOCATION,
    ACL_ANSWER_NOT_PERMITTED = ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
    ACL_ANSWER_INVALID_HANDLE = ACL_ERROR_RT_INVALID_HANDLE,
    ACL_ANSWER_STREAM_CAPTURE_UNSUPPORTED = ACL_ERROR_RT_STREAM_CAPTURED,
    ACL_ANSWER_CAPTURED_EVENT = ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
    ACL_ANSWER_NOT_READY = -1, /* of QUERY_EVENT alone: the runtime tells it by a status */
};

/* Calls whose arguments differ from CUDA's. */
#define QUERY_EVENT(event) acl_query_event(DRIVER(QueryEventStatus), event)
static inline result_t acl_query_event(result_t (*query)(event_t, aclrtEventRecordedStatus *), event_t event)
{
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    result_t answer = query(event, &status);
    return answer == ACL_SUCCESS && status == ACL_EVENT_RECORDED_STATUS_NOT_READY ? ACL_ANSWER_NOT_READY : answer;
}
#define QUERY_CAPTURE(function, stream, status) (function)(stream, status, &(aclmdlRI){NULL})

/* Properties of the runtime that the bodies test; features.mk chooses whole bodies. */
#define CALLS_NEST        1 /* aclrt functions of CANN 8 call rt's by their names */
#define ANY_CALL_IS_FIRST 1

/* libruntime has the rows of api.def from this one on. */
struct library;
extern struct library runtime_library;
#define FIRST_OF_OTHERS ROW_rtMalloc
#define LIBRARY_OF(row) ((row) < FIRST_OF_OTHERS ? &driver_library : &runtime_library)
/* A toolkit's other libraries launch and allocate for a call of the program's, too. */
#define HAS_FOLDER           true
#define IS_DRIVERS(function) (library_calls(&driver_library, function) || library_calls(&runtime_library, function))

#define DRIVER_NAMES         "libascendcl.so", "libacl_rt.so"
#define FUNCTION_PREFIX      "aclrt"
#define FUNCTION_VARIANTS    ""
#define RESULT_OK            ACL_SUCCESS
#define RESULT_NOT_PERMITTED ACL_ERROR_RT_FEATURE_NOT_SUPPORT
#define RESULT_NO_FUNCTION   ACL_ERROR_RT_FEATURE_NOT_SUPPORT
/* NULL is the default stream of the current context, and there is none per thread. */
#define STREAM_LEGACY        ((stream_t)1)
#define STREAM_PER_THREAD    ((stream_t)2)
#define STREAM_NAMED(stream) ((stream) == STREAM_LEGACY ? NULL : (stream))

#include "../shared/calls.h"

#endif
