/* What answers in place of the driver: each body gets the driver's own function first. They are in the files that
 * api.def names.
 */
#ifndef HETERO_CUDA_BODIES_H
#define HETERO_CUDA_BODIES_H

#include "abi.h"

CUresult initialise(CUresult (*)(unsigned), unsigned);
CUresult proc_address(CUresult (*)(const char *, void **, int, uint64_t), CUstream, const char *, void **, int,
                      uint64_t);
CUresult proc_address_v2(CUresult (*)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *), CUstream,
                         const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

CUresult memory_info(CUresult (*)(size_t *, size_t *), size_t *, size_t *);
CUresult total_memory(CUresult (*)(size_t *, CUdevice), size_t *, CUdevice);
CUresult allocate(CUresult (*)(CUdeviceptr *, size_t), CUdeviceptr *, size_t);
CUresult allocate_managed(CUresult (*)(CUdeviceptr *, size_t, unsigned), CUdeviceptr *, size_t, unsigned);
CUresult allocate_pitch(CUresult (*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned), CUdeviceptr *, size_t *,
                        size_t, size_t, unsigned);
CUresult allocate_async(CUresult (*)(CUdeviceptr *, size_t, CUstream), CUstream, CUdeviceptr *, size_t, CUstream);
CUresult allocate_from_pool(CUresult (*)(CUdeviceptr *, size_t, CUmemoryPool, CUstream), CUstream, CUdeviceptr *,
                            size_t, CUmemoryPool, CUstream);
CUresult release(CUresult (*)(CUdeviceptr), CUdeviceptr);
CUresult release_async(CUresult (*)(CUdeviceptr, CUstream), CUstream, CUdeviceptr, CUstream);
CUresult create_pool(CUresult (*)(CUmemoryPool *, const CUmemPoolProps *), CUmemoryPool *, const CUmemPoolProps *);
CUresult destroy_pool(CUresult (*)(CUmemoryPool), CUmemoryPool);
CUresult create_array(CUresult (*)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *), CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
CUresult create_array_3d(CUresult (*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *), CUarray *,
                         const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult destroy_array(CUresult (*)(CUarray), CUarray);
CUresult create_mipmap(CUresult (*)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned), CUmipmappedArray *,
                       const CUDA_ARRAY3D_DESCRIPTOR *, unsigned);
CUresult destroy_mipmap(CUresult (*)(CUmipmappedArray), CUmipmappedArray);

CUresult create_block(CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                                   unsigned long long),
                      CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult release_block(CUresult (*)(CUmemGenericAllocationHandle), CUmemGenericAllocationHandle);
CUresult retain_block(CUresult (*)(CUmemGenericAllocationHandle *, void *), CUmemGenericAllocationHandle *, void *);
CUresult map_block(CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long),
                   CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult unmap_blocks(CUresult (*)(CUdeviceptr, size_t), CUdeviceptr, size_t);

CUresult export_block(CUresult (*)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long),
                      void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
CUresult import_block(CUresult (*)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType),
                      CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
CUresult map_tiles(CUresult (*)(CUarrayMapInfo *, unsigned, CUstream), CUstream, CUarrayMapInfo *, unsigned, CUstream);

CUresult export_table(CUresult (*)(const void **, const CUuuid *), const void **, const CUuuid *);
CUresult share_pointer(CUresult (*)(CUipcMemHandle *, CUdeviceptr), CUipcMemHandle *, CUdeviceptr);
CUresult share_range(CUresult (*)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long), void *,
                     CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
CUresult open_shared(CUresult (*)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *, CUipcMemHandle, unsigned);
CUresult close_shared(CUresult (*)(CUdeviceptr), CUdeviceptr);
CUresult import_pool(CUresult (*)(CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long),
                     CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long);
CUresult import_pointer(CUresult (*)(CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *), CUdeviceptr *,
                        CUmemoryPool, CUmemPoolPtrExportData *);
CUresult import_memory(CUresult (*)(CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *), CUexternalMemory *,
                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *);
CUresult let_go_memory(CUresult (*)(CUexternalMemory), CUexternalMemory);

CUresult instantiate_logged(CUresult (*)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t), CUgraphExec *, CUgraph,
                            CUgraphNode *, char *, size_t);
CUresult instantiate_flags(CUresult (*)(CUgraphExec *, CUgraph, unsigned long long), CUgraphExec *, CUgraph,
                           unsigned long long);
CUresult instantiate_with(CUresult (*)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *), CUstream,
                          CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
CUresult destroy_exec(CUresult (*)(CUgraphExec), CUgraphExec);
CUresult launch_graph(CUresult (*)(CUgraphExec, CUstream), CUstream, CUgraphExec, CUstream);

CUresult retain_primary(CUresult (*)(CUcontext *, CUdevice), CUcontext *, CUdevice);
CUresult release_primary(CUresult (*)(CUdevice), CUdevice);
CUresult reset_primary(CUresult (*)(CUdevice), CUdevice);
CUresult create_context(CUresult (*)(CUcontext *, unsigned, CUdevice), CUcontext *, unsigned, CUdevice);
CUresult create_context_affine(CUresult (*)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice), CUcontext *,
                               CUexecAffinityParam *, int, unsigned, CUdevice);
CUresult create_context_with(CUresult (*)(CUcontext *, CUctxCreateParams *, unsigned, CUdevice), CUcontext *,
                             CUctxCreateParams *, unsigned, CUdevice);
CUresult create_context_vdpau(CUresult (*)(CUcontext *, unsigned, CUdevice, uint32_t, void *), CUcontext *, unsigned,
                              CUdevice, uint32_t, void *);
CUresult create_green(CUresult (*)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned), CUgreenCtx *,
                      CUdevResourceDesc, CUdevice, unsigned);
CUresult destroy_green(CUresult (*)(CUgreenCtx), CUgreenCtx);
CUresult attach_context(CUresult (*)(CUcontext *, unsigned), CUcontext *, unsigned);
CUresult detach_context(CUresult (*)(CUcontext), CUcontext);
CUresult destroy_context(CUresult (*)(CUcontext), CUcontext);
CUresult create_stream(CUresult (*)(CUstream *, unsigned), CUstream *, unsigned);
CUresult create_stream_priority(CUresult (*)(CUstream *, unsigned, int), CUstream *, unsigned, int);
CUresult destroy_stream(CUresult (*)(CUstream), CUstream);

CUresult set_limit(CUresult (*)(CUlimit, size_t), CUlimit, size_t);

CUresult load_module(CUresult (*)(CUmodule *, const char *), CUmodule *, const char *);
CUresult load_image(CUresult (*)(CUmodule *, const void *), CUmodule *, const void *);
CUresult load_image_with(CUresult (*)(CUmodule *, const void *, unsigned, CUjit_option *, void **), CUmodule *,
                         const void *, unsigned, CUjit_option *, void **);
CUresult unload_module(CUresult (*)(CUmodule), CUmodule);
CUresult load_library(CUresult (*)(CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *,
                                   void **, unsigned),
                      CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **,
                      unsigned);
CUresult load_library_file(CUresult (*)(CUlibrary *, const char *, CUjit_option *, void **, unsigned, CUlibraryOption *,
                                        void **, unsigned),
                           CUlibrary *, const char *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **,
                           unsigned);
CUresult unload_library(CUresult (*)(CUlibrary), CUlibrary);
CUresult module_of_library(CUresult (*)(CUmodule *, CUlibrary), CUmodule *, CUlibrary);
CUresult global_of_library(CUresult (*)(CUdeviceptr *, size_t *, CUlibrary, const char *), CUdeviceptr *, size_t *,
                           CUlibrary, const char *);
CUresult function_of_kernel(CUresult (*)(CUfunction *, CUkernel), CUfunction *, CUkernel);
CUresult load_function(CUresult (*)(CUfunction), CUfunction);

CUresult begin_capture(CUresult (*)(CUstream), CUstream, CUstream);
CUresult begin_capture_mode(CUresult (*)(CUstream, CUstreamCaptureMode), CUstream, CUstream, CUstreamCaptureMode);
CUresult begin_capture_to_graph(CUresult (*)(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                                             CUstreamCaptureMode),
                                CUstream, CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                                CUstreamCaptureMode);
CUresult begin_recapture(CUresult (*)(CUstream, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void *),
                         CUstream, CUstream, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void *);
CUresult begin_capture_to_cig(CUresult (*)(CUstream, CUstreamCigCaptureParams *), CUstream, CUstream,
                              CUstreamCigCaptureParams *);
CUresult end_capture_to_cig(CUresult (*)(CUstream), CUstream, CUstream);
CUresult end_capture(CUresult (*)(CUstream, CUgraph *), CUstream, CUstream, CUgraph *);
CUresult wait_event(CUresult (*)(CUstream, CUevent, unsigned), CUstream, CUstream, CUevent, unsigned);

CUresult launch_on_several(CUresult (*)(CUDA_LAUNCH_PARAMS *, unsigned, unsigned), CUDA_LAUNCH_PARAMS *, unsigned,
                           unsigned);

#endif
