/* The layouts of limiters/cuda/abi.h, said once more in numbers. test_abi.py compiles this against our header and
 * against NVIDIA's cuda.h: what holds for both is the same in both. With cuda.h, abi.h is included
 * after it, so that the compiler also compares every prototype. */
#ifdef REAL
#define __CUDA_API_VERSION_INTERNAL /* declares every version of a function under its exported name */
#include <cuda.h>
#endif
#include "abi.h"

#define SIZE(type, size)         _Static_assert(sizeof(type) == (size), #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)

SIZE(CUresult, 4);
SIZE(CUdevice, 4);
SIZE(CUdeviceptr, 8);
SIZE(CUmemGenericAllocationHandle, 8);
SIZE(CUuuid, 16);
SIZE(CUipcMemHandle, 64);
SIZE(CUipcEventHandle, 64);
SIZE(CUmemPoolPtrExportData, 64);

SIZE(CUlaunchConfig, 56);
AT(CUlaunchConfig, sharedMemBytes, 24);
AT(CUlaunchConfig, hStream, 32);
AT(CUlaunchConfig, attrs, 40);
AT(CUlaunchConfig, numAttrs, 48);
SIZE(CUDA_LAUNCH_PARAMS, 56);
AT(CUDA_LAUNCH_PARAMS, hStream, 40);
AT(CUDA_LAUNCH_PARAMS, kernelParams, 48);
SIZE(CUdevprop, 56);

SIZE(CUDA_ARRAY_DESCRIPTOR, 24);
AT(CUDA_ARRAY_DESCRIPTOR, Format, 16);
AT(CUDA_ARRAY_DESCRIPTOR, NumChannels, 20);
SIZE(CUDA_ARRAY3D_DESCRIPTOR, 40);
AT(CUDA_ARRAY3D_DESCRIPTOR, Depth, 16);
AT(CUDA_ARRAY3D_DESCRIPTOR, Flags, 32);
SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS, 32);
AT(CUDA_ARRAY_MEMORY_REQUIREMENTS, alignment, 8);

SIZE(CUDA_MEMCPY2D, 128);
AT(CUDA_MEMCPY2D, srcDevice, 32);
AT(CUDA_MEMCPY2D, dstMemoryType, 72);
AT(CUDA_MEMCPY2D, WidthInBytes, 112);
SIZE(CUDA_MEMCPY3D, 200);
AT(CUDA_MEMCPY3D, srcArray, 56);
AT(CUDA_MEMCPY3D, dstXInBytes, 88);
AT(CUDA_MEMCPY3D, Depth, 192);
SIZE(CUDA_MEMCPY3D_PEER, 200);
AT(CUDA_MEMCPY3D_PEER, dstContext, 152);

SIZE(CUmemLocation, 8);
SIZE(CUmemAccessDesc, 12);
SIZE(CUmemAllocationProp, 32);
AT(CUmemAllocationProp, location, 8);
AT(CUmemAllocationProp, allocFlags, 24);
SIZE(CUmemPoolProps, 88);
AT(CUmemPoolProps, location, 8);
AT(CUmemPoolProps, maxSize, 24);
SIZE(CUarrayMapInfo, 96);
AT(CUarrayMapInfo, resource, 8);
AT(CUarrayMapInfo, subresource, 24);
AT(CUarrayMapInfo, memOperationType, 56);
AT(CUarrayMapInfo, memHandle, 64);
SIZE(CUmulticastObjectProp, 32);
AT(CUmulticastObjectProp, size, 8);
SIZE(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, 104);
AT(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size, 24);
SIZE(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, 88);
AT(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size, 8);

SIZE(CUDA_KERNEL_NODE_PARAMS_v1, 56);
AT(CUDA_KERNEL_NODE_PARAMS_v1, kernelParams, 40);
SIZE(CUDA_KERNEL_NODE_PARAMS, 72);
AT(CUDA_KERNEL_NODE_PARAMS, kern, 56);
SIZE(CUDA_MEMSET_NODE_PARAMS, 40);
AT(CUDA_MEMSET_NODE_PARAMS, width, 24);
SIZE(CUDA_HOST_NODE_PARAMS, 16);
SIZE(CUDA_MEM_ALLOC_NODE_PARAMS, 120);
AT(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize, 104);
AT(CUDA_MEM_ALLOC_NODE_PARAMS, dptr, 112);
SIZE(CUgraphNodeParams, 256);
AT(CUgraphNodeParams, kernel, 16);
AT(CUgraphNodeParams, memcpy.copyParams, 32);
AT(CUgraphNodeParams, alloc.dptr, 128);
SIZE(CUgraphEdgeData, 8);
SIZE(CUDA_GRAPH_INSTANTIATE_PARAMS, 32);
AT(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out, 24);
SIZE(CUgraphExecUpdateResultInfo, 24);
AT(CUgraphExecUpdateResultInfo, errorNode, 8);

#ifdef CONSTANTS /* every enumerator and number of abi.h with its value, as the test read them there */
#define IS(name, value) _Static_assert((name) == (value), #name);
CONSTANTS
#endif
