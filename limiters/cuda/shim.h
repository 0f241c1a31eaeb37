/* What the parts of the CUDA shim share: the real functions, which device is meant, the prototypes of the bodies. */
#ifndef HETERO_CUDA_SHIM_H
#define HETERO_CUDA_SHIM_H

#include "abi.h"

#include "../timeshare/governor.h"
#include "../core/ledger.h"
#include "../core/symbols.h"
#include "../core/table.h"
#include "../core/tenant.h"

#include <stdatomic.h>

enum {
#define OWN(name, ...)      ROW_##name,
#define OWN_IN(name, ...)   ROW_##name,
#define GATED_IN(name, ...) ROW_##name,
#define USED(name)          ROW_##name,
#include "api.def"
    ROWS
};

extern struct symbol cuda_rows[ROWS];
extern const struct symbols cuda_symbols;

/* The driver's own function; NULL in a driver too old to have it. */
#define REAL(name) ((typeof(&name))symbol_real(&cuda_symbols, &cuda_rows[ROW_##name]))

/* Kinds of table entries. */
enum {
    HELD_POINTER = 1, /* key: address; owner: context; link: &spilled, or NULL */
    HELD_POOLED,      /* key: address; link: its pool */
    HELD_ARRAY,       /* key: CUarray or CUmipmappedArray */
    HELD_HANDLE,      /* key: VMM handle; bytes: references it stands for; link: block */
    HELD_MAPPING,     /* key: address; bytes: length; link: block */
    STREAM_DEVICE,    /* key: stream */
    HELD_EXEC,        /* + device; key: CUgraphExec */
};

/* --- device.c: which of the grant's devices is meant (or DEVICE_FOREIGN, DEVICE_NONE) */
int device_of(CUdevice device);
CUdevice ordinal_of(int device);
int device_current(void);
int device_of_stream(CUstream stream);
/* Whether every device that this process sees is one of the grant's. */
bool devices_all_ours(void);
CUcontext context_current(void);
void device_after_fork(void);
void context_after_fork(void);

/* --- memory.c */
/* Whether a device's memory is ours to count. */
bool counted(int device);
/* Charge `bytes` to a device before the driver is asked: CUDA_SUCCESS, out of memory, or not permitted. */
CUresult charge(int device, uint64_t bytes);
void refund(int device, uint64_t bytes);
/* The driver answered: keep the charge under (kind, key), or give it back. */
CUresult settle(CUresult answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link);
/* Free `key`: forgotten before the driver is asked, for it may hand the name out again at once; remembered again if it
 * refuses. */
#define FREE(kind, key, call)                                                                                          \
    do {                                                                                                               \
        struct entry entry, previous;                                                                                  \
        bool ours = table_take(kind, (uint64_t)(uintptr_t)(key), &entry);                                              \
        CUresult answer = call;                                                                                        \
        if (ours && answer == CUDA_SUCCESS)                                                                            \
            refund(entry.device, entry.bytes);                                                                         \
        else if (ours)                                                                                                 \
            table_put(&entry, &previous);                                                                              \
        return answer;                                                                                                 \
    } while (0)

/* Whether this answer of the driver means that the host is to hold what was asked of the device. */
bool spills(CUresult answer, int device);
/* Memory of the host in place of the device's, charged to the device. */
CUresult allocate_spilled(CUdeviceptr *pointer, int device, uint64_t bytes);
/* Give back everything whose life ended with this context. */
void refund_context(CUcontext context);

/* --- pool.c */
/* Whether any pool was ever allocated from. */
bool pools_known(void);
/* Give back what the pools of a device do not keep any more; or, worse for speed, make them keep nothing. */
void pools_settle(int device);
void pools_trim(int device);
/* The driver answered to the freeing of what `entry` was taken out of the table for. */
CUresult settle_freed(CUresult answer, const struct entry *entry);
/* What a graph takes of its device's pool for graphs, and its end. What it allocated and did not free outlives it. */
CUresult charge_graphs(int device, uint64_t bytes);
void refund_graphs(int device, uint64_t bytes);
void pool_after_fork(void);

/* --- launch.c */
struct launch_ticket {
    struct governor *governor; /* NULL: not gated */
    struct stream_key stream;
};
/* How many devices' terms a launch has to look at: all of the grant's, once it is known that this process sees no
 * others; NO_GRANT; or 0 until that is known. Whoever writes writes the same. */
extern _Atomic int launch_devices;
enum { NO_GRANT = -1 };

/* Whether nothing that this process could launch to is limited. False where that is not known yet. */
static inline bool launch_is_free(void)
{
    int count = atomic_load_explicit(&launch_devices, memory_order_acquire);
    for (int device = 0; device < count; device++)
        if (__builtin_expect(terms_limit_core(tenant_terms(device)), 0))
            return false;
    return __builtin_expect(count != 0, 1);
}

/* Find out as far as it can be told, then say the same. */
bool launch_look(void);

CUresult launch_enter(struct launch_ticket *launch_ticket, CUstream stream);
void launch_leave(const struct launch_ticket *launch_ticket);
struct governor *governor_known(int device);
void launch_after_fork(void);
struct stream_key stream_key(CUstream stream);

/* --- capture.c */
extern _Atomic unsigned captures; /* begun and not ended: while there is none, no stream needs to be asked */

static inline bool capturing(void)
{
    return __builtin_expect(atomic_load_explicit(&captures, memory_order_acquire) > 0, 0);
}

bool stream_capturing(CUstream stream);
void capture_after_fork(void);

/* --- the bodies, in the files api.def names */
CUresult initialise(CUresult (*)(unsigned), unsigned);
CUresult proc_address(CUresult (*)(const char *, void **, int, uint64_t), const char *, void **, int, uint64_t);
CUresult proc_address_v2(CUresult (*)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *),
                         CUstream, const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

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
CUresult create_array(CUresult (*)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *), CUarray *,
                      const CUDA_ARRAY_DESCRIPTOR *);
CUresult create_array_3d(CUresult (*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *), CUarray *,
                         const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult destroy_array(CUresult (*)(CUarray), CUarray);
CUresult create_mipmap(CUresult (*)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned),
                       CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned);
CUresult destroy_mipmap(CUresult (*)(CUmipmappedArray), CUmipmappedArray);

CUresult create_block(CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                                   unsigned long long),
                      CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult release_block(CUresult (*)(CUmemGenericAllocationHandle), CUmemGenericAllocationHandle);
CUresult retain_block(CUresult (*)(CUmemGenericAllocationHandle *, void *), CUmemGenericAllocationHandle *, void *);
CUresult map_block(CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long),
                   CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult unmap_blocks(CUresult (*)(CUdeviceptr, size_t), CUdeviceptr, size_t);

CUresult instantiate_logged(CUresult (*)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t), CUgraphExec *,
                            CUgraph, CUgraphNode *, char *, size_t);
CUresult instantiate_flags(CUresult (*)(CUgraphExec *, CUgraph, unsigned long long), CUgraphExec *, CUgraph,
                           unsigned long long);
CUresult instantiate_wishes(CUresult (*)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *), CUstream,
                            CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);
CUresult destroy_exec(CUresult (*)(CUgraphExec), CUgraphExec);

CUresult retain_primary(CUresult (*)(CUcontext *, CUdevice), CUcontext *, CUdevice);
CUresult release_primary(CUresult (*)(CUdevice), CUdevice);
CUresult reset_primary(CUresult (*)(CUdevice), CUdevice);
CUresult create_context(CUresult (*)(CUcontext *, unsigned, CUdevice), CUcontext *, unsigned, CUdevice);
CUresult create_context_affine(CUresult (*)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice), CUcontext *,
                               CUexecAffinityParam *, int, unsigned, CUdevice);
CUresult create_context_with(CUresult (*)(CUcontext *, CUctxCreateParams *, unsigned, CUdevice), CUcontext *,
                             CUctxCreateParams *, unsigned, CUdevice);
CUresult destroy_context(CUresult (*)(CUcontext), CUcontext);
CUresult destroy_stream(CUresult (*)(CUstream), CUstream);

CUresult begin_capture(CUresult (*)(CUstream), CUstream, CUstream);
CUresult begin_capture_mode(CUresult (*)(CUstream, CUstreamCaptureMode), CUstream, CUstream, CUstreamCaptureMode);
CUresult begin_capture_to_graph(CUresult (*)(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                                             CUstreamCaptureMode),
                                CUstream, CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                                CUstreamCaptureMode);
CUresult end_capture(CUresult (*)(CUstream, CUgraph *), CUstream, CUstream, CUgraph *);
CUresult wait_event(CUresult (*)(CUstream, CUevent, unsigned), CUstream, CUstream, CUevent, unsigned);

#endif
