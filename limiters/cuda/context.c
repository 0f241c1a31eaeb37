/* Contexts and streams end here, and with them the memory, the fences and the tracked streams that lived in them. */
#include "context.h"

#include "bodies.h"
#include "capturing.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "governors.h"

#include "../core/ledger.h"
#include "../core/log.h"
#include "../nvml/shim.h"

#include <pthread.h>

#define ORDINALS 64

/* Each ordinal's primary context, as the driver last handed it out. */
static _Atomic(CUcontext) primaries[ORDINALS];

/* The devices of which this process's first context has been measured, one bit each: under `measuring`. Where it is
 * charged it stays so until the process ends: the driver keeps part of it, and the next context takes it again. */
static unsigned measured;
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;

void context_after_fork(void)
{
    measuring = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    measured = 0;
}

/* With `measuring` held: say what the driver counts for this process just after its first context on a device, and
 * charge it where the grant says so. */
static CUresult measure_context(int device)
{
    bool counts = (terms_flags(tenant_terms(device)) & HETERO_FLAG_CONTEXT) != 0;
    uint64_t bytes;
    if (!nvml_process_memory(tenant_terms(device)->uuid, &bytes)) {
        log_line(counts ? LOG_ERROR : LOG_INFO, "device %d: the driver does not say what a context takes", device);
        return CUDA_SUCCESS;
    }
    CUresult answer = counts ? charge(device, bytes) : CUDA_SUCCESS;
    if (answer == CUDA_SUCCESS && tenant_region() != NULL)
        ledger_uncharged(tenant_region(), HETERO_UNCHARGED_CONTEXT, (unsigned)device, (int64_t)bytes);
    return answer;
}

static CUresult context_made(CUdevice ordinal)
{
    int device = device_of(ordinal);
    CUresult answer = CUDA_SUCCESS;
    if (!counted(device))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&measuring);
    if ((measured & 1u << device) == 0) {
        answer = measure_context(device);
        if (answer == CUDA_SUCCESS)
            measured |= 1u << device;
    }
    pthread_mutex_unlock(&measuring);
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
    refund_context(context);
}

CUresult retain_primary(CUresult (*real)(CUcontext *, CUdevice), CUcontext *context, CUdevice device)
{
    CUresult answer = real(context, device);
    if (answer != CUDA_SUCCESS)
        return answer;
    answer = context_made(device);
    if (answer != CUDA_SUCCESS)
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else if (device >= 0 && device < ORDINALS)
        atomic_store(&primaries[device], *context);
    return answer;
}

#define CREATE(call)                                                                                                   \
    do {                                                                                                               \
        CUresult answer = call;                                                                                        \
        if (answer != CUDA_SUCCESS)                                                                                    \
            return answer;                                                                                             \
        answer = context_made(device);                                                                                 \
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
    CUresult answer = real(stream);
    if (answer == CUDA_SUCCESS)
        capture_over((uintptr_t)stream); /* abandoned */
    return answer;
}
