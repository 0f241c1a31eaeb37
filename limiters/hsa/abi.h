/* The HSA runtime's ABI as the limiter meets it: our own declarations of what libhsa-runtime64.so.1 exports. The public
 * reference is hsa.h and hsa_ext_amd.h of ROCm 5.2; tests/limiters compares them where they are installed. */
#ifndef HETERO_HSA_ABI_H
#define HETERO_HSA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef enum { HSA_STATUS_SUCCESS = 0, HSA_STATUS_ERROR_OUT_OF_RESOURCES = 0x1008 } hsa_status_t;
typedef enum {
    HSA_AGENT_INFO_NAME = 0,            /* text of at most 64 bytes */
    HSA_AMD_AGENT_INFO_UUID = 0xA011,   /* text of at most 21 bytes */
    HSA_AMD_AGENT_INFO_NUM_XCC = 0xA111 /* uint32_t; of ROCm 6 */
} hsa_agent_info_t;

typedef struct {
    uint64_t handle;
} hsa_agent_t;
typedef struct {
    uint64_t handle;
} hsa_executable_t;
typedef struct {
    uint64_t handle;
} hsa_code_object_reader_t;
typedef struct {
    uint64_t handle;
} hsa_loaded_code_object_t;
typedef struct hsa_queue_s hsa_queue_t;
typedef uint32_t hsa_queue_type32_t;

#define OWN(name, parameters, ...) hsa_status_t name parameters;
#define USED(name, parameters)     hsa_status_t name parameters;
#include "api.def"

#endif
