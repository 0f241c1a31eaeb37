/* Contexts and streams end here, and with them the memory, the fences and the tracked streams that lived in them. */
#include "context.h"

#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "governors.h"
#include "pools.h"
#include "room.h"
#include "uncounted.h"

#include "../core/log.h"
#include "../nvml/shim.h"

#include <pthread.h>

#define ORDINALS 64

/* Each ordinal's primary context, as the driver last handed it out. */
static _Atomic(CUcontext) primaries[ORDINALS];

/* The devices of which this process's context has been charged, one bit each: under `charging`. It stays charged until
 * the process ends: the driver keeps part of it, and the next context takes it again. */
static unsigned charged;
static pthread_mutex_t charging = PTHREAD_MUTEX_INITIALIZER;

void context_after_fork(void)
{
    charging = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    charged = 0;
}

/* Where the grant says so, charge what the driver counts for this process on a device where it just got a context. */
static CUresult charge_context(CUdevice ordinal)
{
    int device = device_of(ordinal);
    uint64_t bytes;
    CUresult answer = CUDA_SUCCESS;
    if (device < 0 || terms_policy(tenant_terms(device)) == HETERO_POLICY_OFF ||
        (terms_flags(tenant_terms(device)) & HETERO_FLAG_CONTEXT) == 0)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&charging);
    if ((charged & 1u << device) == 0) {
        if (nvml_process_memory(tenant_terms(device)->uuid, &bytes))
            answer = charge(device, bytes);
        else
            log_line(LOG_ERROR, "device %d: the driver does not say what a context takes: not counted", device);
        if (answer == CUDA_SUCCESS)
            charged |= 1u << device;
    }
    pthread_mutex_unlock(&charging);
    return answer;
}

static void before_context_ends(CUcontext context)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL && context != NULL)
            gate_before_context_ends(&governor->gate, context);
    }
}

static bool stream_of(const struct entry *entry, const void *context)
{
    return entry->kind == STREAM_DEVICE && entry->owner == context;
}

static void after_context_ended(CUcontext context)
{
    struct entry entry;
    while (context != NULL && table_take_match(stream_of, context, &entry))
        ;
    captures_over(context);
    room_context_over(context);
    refund_context(context);
    pools_context_over();
    context_over(context);
}

CUresult retain_primary(CUresult (*real)(CUcontext *, CUdevice), CUcontext *context, CUdevice device)
{
    struct measured measured = context_begins(device_of(device));
    CUresult answer = real(context, device);
    context_made(&measured, answer == CUDA_SUCCESS ? *context : NULL);
    if (answer != CUDA_SUCCESS)
        return answer;
    answer = charge_context(device);
    if (answer != CUDA_SUCCESS)
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else if (device >= 0 && device < ORDINALS)
        atomic_store(&primaries[device], *context);
    return answer;
}

#define CREATE(call)                                                                                                   \
    do {                                                                                                               \
        struct measured measured = context_begins(device_of(device));                                                  \
        CUresult answer = call;                                                                                        \
        context_made(&measured, answer == CUDA_SUCCESS ? *context : NULL);                                             \
        if (answer != CUDA_SUCCESS)                                                                                    \
            return answer;                                                                                             \
        answer = charge_context(device);                                                                               \
        if (answer != CUDA_SUCCESS)                                                                                    \
            REAL(cuCtxDestroy_v2)(*context);                                                                           \
        return answer;                                                                                                 \
    } while (0)

CUresult create_context(CUresult (*real)(CUcontext *, unsigned, CUdevice), CUcontext *context, unsigned flags,
                        CUdevice device)
{
    CREATE(real(context, flags, device));
}

CUresult create_context_affine(CUresult (*real)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice),
                               CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                               CUdevice device)
{
    CREATE(real(context, affinity, count, flags, device));
}

CUresult create_context_with(CUresult (*real)(CUcontext *, CUctxCreateParams *, unsigned, CUdevice), CUcontext *context,
                             CUctxCreateParams *params, unsigned flags, CUdevice device)
{
    CREATE(real(context, params, flags, device));
}

CUresult create_context_vdpau(CUresult (*real)(CUcontext *, unsigned, CUdevice, uint32_t, void *), CUcontext *context,
                              unsigned flags, CUdevice device, uint32_t vdpau, void *lookup)
{
    CREATE(real(context, flags, device, vdpau, lookup));
}

/* A green context has part of a device's processors; it is destroyed by a name of its own. */
CUresult create_green(CUresult (*real)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned), CUgreenCtx *context,
                      CUdevResourceDesc parts, CUdevice device, unsigned flags)
{
    struct measured measured = context_begins(device_of(device));
    CUresult answer = real(context, parts, device, flags);
    context_made(&measured, answer == CUDA_SUCCESS ? (CUcontext)*context : NULL);
    return answer;
}

CUresult destroy_green(CUresult (*real)(CUgreenCtx), CUgreenCtx context)
{
    CUresult answer = real(context);
    if (answer == CUDA_SUCCESS)
        context_over((CUcontext)context);
    return answer;
}

static CUresult end_primary(CUresult (*real)(CUdevice), CUdevice device, bool reset)
{
    CUcontext context = device >= 0 && device < ORDINALS ? atomic_load(&primaries[device]) : NULL;
    before_context_ends(context);
    CUresult answer = real(device);
    unsigned flags;
    int active = 1;
    if (answer == CUDA_SUCCESS && !reset)
        answer = REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    if (answer == CUDA_SUCCESS && (reset || !active))
        after_context_ended(context);
    return answer;
}

CUresult release_primary(CUresult (*real)(CUdevice), CUdevice device)
{
    return end_primary(real, device, false);
}

CUresult reset_primary(CUresult (*real)(CUdevice), CUdevice device)
{
    return end_primary(real, device, true);
}

CUresult destroy_context(CUresult (*real)(CUcontext), CUcontext context)
{
    before_context_ends(context);
    CUresult answer = real(context);
    if (answer == CUDA_SUCCESS)
        after_context_ended(context);
    return answer;
}

/* Each detaching takes back one attaching, and the one after the last destroys. */
CUresult attach_context(CUresult (*real)(CUcontext *, unsigned), CUcontext *context, unsigned flags)
{
    CUresult answer = real(context, flags);
    struct entry previous, entry = {.kind = CONTEXT_ATTACHED};
    if (answer != CUDA_SUCCESS)
        return answer;
    pthread_mutex_lock(&charging);
    if (!table_take(CONTEXT_ATTACHED, (uintptr_t)*context, &entry))
        entry = (struct entry){.kind = CONTEXT_ATTACHED, .key = (uintptr_t)*context, .owner = *context};
    entry.bytes++;
    table_put(&entry, &previous);
    pthread_mutex_unlock(&charging);
    return answer;
}

CUresult detach_context(CUresult (*real)(CUcontext), CUcontext context)
{
    struct entry previous, entry;
    pthread_mutex_lock(&charging);
    bool attached = table_take(CONTEXT_ATTACHED, (uintptr_t)context, &entry);
    if (attached && --entry.bytes > 0)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&charging);
    return attached ? real(context) : destroy_context(real, context);
}

/* Streams take memory by the handful; what they take beyond the limit goes back. */
#define CREATE_STREAM(call)                                                                                            \
    do {                                                                                                               \
        CUresult answer = call;                                                                                        \
        if (answer != CUDA_SUCCESS || uncounted_settle(device_current()))                                              \
            return answer;                                                                                             \
        REAL(cuStreamDestroy_v2)(*stream);                                                                             \
        uncounted_settle(device_current());                                                                            \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    } while (0)

CUresult create_stream(CUresult (*real)(CUstream *, unsigned), CUstream *stream, unsigned flags)
{
    CREATE_STREAM(real(stream, flags));
}

CUresult create_stream_priority(CUresult (*real)(CUstream *, unsigned, int), CUstream *stream, unsigned flags,
                                int priority)
{
    CREATE_STREAM(real(stream, flags, priority));
}

CUresult destroy_stream(CUresult (*real)(CUstream), CUstream stream)
{
    struct stream_key key = {.stream = stream};
    struct entry entry;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL)
            gate_before_stream_ends(&governor->gate, &key);
    }
    table_take(STREAM_DEVICE, (uintptr_t)stream, &entry);
    pools_stream_over(stream);
    CUresult answer = real(stream);
    if (answer == CUDA_SUCCESS)
        capture_over((uintptr_t)stream); /* abandoned */
    return answer;
}
