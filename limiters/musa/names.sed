# MUSA's declarations and tables are CUDA's (../cuda/{abi.h,types.h,api.def,others.def}) under other names, less what MUSA's
# driver is not known to have: what CUDA 13 added, views that were measured on NVIDIA's cards alone, and what CUDA has for
# other APIs, fabrics, checkpoints and rays. Layouts and values are taken as CUDA's: Moore Threads has no header that may
# be had without its toolkit. A line may be of a function that a version of the driver lacks: that is found by its symbols.
# docs/vendors.md says by what public sources the functions are known, and what of them is not.

# A line of a table goes on behind a comma.
/^[A-Z_]*(cu/{
:line
/,$/{
N
b line
}
}

# What MUSA's limiter neither answers nor calls; of these names additions.def has those that are harmless.
/^OWN(cu\(Tex\|Surf\)Object/d
/^OWN(cuMem\(SetAccess\|AllocHost\|FreeHost\|HostAlloc\|HostRegister\|HostUnregister\)/d
/^OWN(cu\(CtxCreate_v4\|GLCtxCreate\|VDPAUCtxCreate\)/d
/^PTSZ_OWN(cuStream\(BeginRecaptureToGraph\|BeginCaptureToCig\|EndCaptureToCig\)/d
/^LAUNCH(/d
/^PTSZ_GATED(cuMemcpy\(Batch\|3DBatch\)Async_v2/d
/^PTSZ_GATED(cuMemcpy\(3D\)\?WithAttributesAsync/d
/^PTSZ_GATED(cu\(MemBatchDecompress\|FabricCpyBatch\|MemPrefetchBatch\|MemDiscard[A-Za-z]*Batch\)Async/d
/^USED(cu\(EventElapsedTime\|StreamWaitValue32\|MemHostGetDevicePointer\)/d
/^USED(cu\(GraphGetEdges\|GraphKernelNodeGetParams\|FuncGetParamInfo\|KernelGetParamInfo\)/d
/^[A-Z]*(cu\(Checkpoint\|EGL\|GL\|GraphicsEGL\|GraphicsGL\|GraphicsVDPAU\|LogicalEndpoint\|VDPAU\|WGL\)/d

# No page tables are charged.
s/\bmap_in_tables\b/map_block/
s/\bunmap_in_tables\b/unmap_blocks/

# Whether launches call each other is not known, so they are taken to.
s|^\(#define CALLS_NEST *\)0 .*|\11 /* not known, so taken to */|

# Programs choose devices by their numbers in the driver.
s|^\(#define VISIBLE_DEVICES *\).*|\1""|

s/\bcu\([A-Z#"]\)/mu\1/g
s/\bCU\([a-z_#]\)/MU\1/g
s/CUDA/MUSA/g
s/libcuda/libmusa/g
