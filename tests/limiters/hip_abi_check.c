/* The layouts of simulator/drivers/kfd_abi.h, limiters/{hip,hsa}/abi.h and limiters/hsa/kfd.h, said once more in
 * numbers. test_hip.py compiles this against our headers and against AMD's: what holds for both is the same in both. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef REAL
#define __HIP_PLATFORM_AMD__
#include <hsakmttypes.h>
#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ven_amd_loader.h>
#include <linux/ioctl.h>
#include <linux/kfd_ioctl.h>
#include <hip/hip_runtime_api.h>
typedef hipDeviceProp_t hipDeviceProp_tR0600; /* came with 6.0, and the others with 6.5 */
typedef struct launch_config hipLaunchConfig_t;
typedef struct drv_launch_config HIP_LAUNCH_CONFIG;
typedef int hipMemRangeHandleType, hipDriverProcAddressQueryResult, hipLibraryOption;
typedef struct ihipLibrary_t *hipLibrary_t;
typedef struct graph_node hipGraphNodeParams;
typedef struct function_launch hipFunctionLaunchParams;
#else
#include "kfd_abi.h"
#include "hip/abi.h"
#include "hsa/abi.h"
#endif

#define SIZE(type, size)         _Static_assert(sizeof(type) == (size), #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)
#ifdef REAL
#define IN_QUEUE(member, offset)                                                                                       \
    _Static_assert(offsetof(amd_queue_t, member) - offsetof(amd_queue_t, read_dispatch_id) == (offset), #member)
#else
#define IN_QUEUE(member, offset) AT(amd_queue_tail_t, member, offset)
#endif
#define IS(name, value) _Static_assert((name) == (value), #name)

SIZE(HsaNodeProperties, 356);
AT(HsaNodeProperties, EngineId, 68);
AT(HsaNodeProperties, LocalMemSize, 80);
AT(HsaNodeProperties, MarketingName, 100);
AT(HsaNodeProperties, UniqueID, 328);
AT(HsaNodeProperties, NumGws, 322);
SIZE(HsaMemoryProperties, 32);
SIZE(HsaCacheProperties, 1056);
SIZE(HsaIoLinkProperties, 48);
SIZE(HsaGpuTileConfig, 64);
SIZE(HsaPointerInfo, 68);
AT(HsaPointerInfo, UserData, 60);
SIZE(HsaQueueResource, 40);
SIZE(HsaEventData, 44);
AT(HsaEventData, HWData2, 32);
SIZE(HsaEventDescriptor, 24);
SIZE(HsaEvent, 48);
AT(HsaEvent, EventData, 4);
SIZE(HsaClockCounters, 32);
SIZE(HsaMemFlags, 4);
AT(amd_signal_t, value, 8);
AT(amd_signal_t, event_id, 24);
AT(amd_signal_t, start_ts, 32);
AT(amd_signal_t, end_ts, 40);
SIZE(struct kfd_ioctl_create_queue_args, 88);
AT(struct kfd_ioctl_create_queue_args, gpu_id, 36);
AT(struct kfd_ioctl_set_scratch_backing_va_args, gpu_id, 8);
AT(struct kfd_ioctl_alloc_memory_of_gpu_args, size, 8);
AT(struct kfd_ioctl_alloc_memory_of_gpu_args, handle, 16);
AT(struct kfd_ioctl_alloc_memory_of_gpu_args, gpu_id, 32);
AT(struct kfd_ioctl_alloc_memory_of_gpu_args, flags, 36);
IS(AMDKFD_IOC_CREATE_QUEUE, 0xC0584B02);
IS(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, 0xC0104B11);
IS(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, 0xC0284B16);
IS(AMDKFD_IOC_FREE_MEMORY_OF_GPU, 0x40084B17);
IS((unsigned)KFD_IOC_ALLOC_MEM_FLAGS_VRAM, 1);
IS((unsigned)KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE, 1u << 28);
IS((unsigned)KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE, 1u << 31);
IN_QUEUE(queue_properties, 52);
IN_QUEUE(queue_inactive_signal, 64);
SIZE(hsa_kernel_dispatch_packet_t, 64);
AT(hsa_kernel_dispatch_packet_t, kernel_object, 32);
AT(hsa_kernel_dispatch_packet_t, completion_signal, 56);
SIZE(hsa_ven_amd_loader_segment_descriptor_t, 64);
SIZE(hsa_ven_amd_loader_1_00_pfn_t, 24);

IS(HSA_EXTENSION_AMD_LOADER, 0x201);
SIZE(dim3, 12);
SIZE(hipUUID, 16);
SIZE(hipExtent, 24);
SIZE(hipPitchedPtr, 32);
SIZE(hipChannelFormatDesc, 20);
SIZE(hipIpcMemHandle_t, 64);
SIZE(hipLaunchParams, 56);
AT(hipDeviceProp_t, totalGlobalMem, 256);
IS(hipErrorOutOfMemory, 2);
IS(hipErrorNotReady, 600);
IS(hipErrorNotSupported, 801);
IS(hipErrorStreamCaptureUnsupported, 900);
IS(hipErrorCapturedEvent, 907);
IS(hipMemPoolAttrReservedMemCurrent, 5);
IS(hipEventDisableTiming, 2);
IS(hipStreamCaptureModeRelaxed, 2);
SIZE(HIP_ARRAY_DESCRIPTOR, 24);
AT(HIP_ARRAY_DESCRIPTOR, NumChannels, 20);
SIZE(HIP_ARRAY3D_DESCRIPTOR, 40);
AT(HIP_ARRAY3D_DESCRIPTOR, Format, 24);

SIZE(hsa_status_t, 4);
SIZE(hsa_agent_t, 8);
SIZE(hsa_executable_t, 8);
SIZE(hsa_code_object_reader_t, 8);
SIZE(hsa_loaded_code_object_t, 8);
IS(HSA_STATUS_SUCCESS, 0);
IS(HSA_STATUS_ERROR_OUT_OF_RESOURCES, 0x1008);
IS(HSA_AMD_AGENT_INFO_UUID, 0xA011);
IS(HSA_AGENT_INFO_NAME, 0);

#ifdef REAL
/* Each function takes what api.def says: called with that, it compiles. */
#define OWN(name, parameters, arguments, ...)              CALL(name, parameters, arguments)
#define OWN_IN(name, stream, parameters, arguments, ...)   CALL(name, parameters, arguments)
#define GATED_IN(name, stream, parameters, arguments, ...) CALL(name, parameters, arguments)
#define USED(name, parameters)                             int used_##name parameters;
#define CALL(name, parameters, arguments)                                                                              \
    int call_##name parameters;                                                                                        \
    int call_##name parameters                                                                                         \
    {                                                                                                                  \
        return (int)name arguments;                                                                                    \
    }
#include "hip/api.def"
#define OWN(name, parameters, arguments, ...) CALL(name, parameters, arguments)
#define USED(name, parameters)
#include "hsa/api.def"
#endif
