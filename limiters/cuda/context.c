/* Contexts and streams end here, and with them the memory, the marks and the lanes that lived in them. */
#include "shim.h"

#define ORDINALS 64

/* Each ordinal's primary context, as the driver last handed it out. */
static _Atomic(CUcontext) primaries[ORDINALS];

static void before_context_ends(CUcontext context)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL && context != NULL)
            governor_before_context_ends(governor, context);
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
    refund_context(context);
}

CUresult retain_primary(CUresult (*real)(CUcontext *, CUdevice), CUcontext *context, CUdevice device)
{
    CUresult answer = real(context, device);
    if (answer == CUDA_SUCCESS && device >= 0 && device < ORDINALS)
        atomic_store(&primaries[device], *context);
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

CUresult destroy_stream(CUresult (*real)(CUstream), CUstream stream)
{
    struct stream_key key = {.stream = stream};
    struct entry entry;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL)
            governor_before_stream_ends(governor, &key);
    }
    table_take(STREAM_DEVICE, (uintptr_t)stream, &entry);
    return real(stream);
}
