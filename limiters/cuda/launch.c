/* Device work: every launch, copy and fill passes the gate of its device's governor, unless it is being captured. */
#include "launch.h"

#include "bodies.h"
#include "capturing.h"
#include "device.h"

/* A per-thread default stream is its thread's; the address of this tells threads apart. */
static __thread char thread_identity;

struct stream_key stream_key(CUstream stream)
{
    struct stream_key key = {.stream = stream};
    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        key.context = context_current();
    if (stream == CU_STREAM_PER_THREAD)
        key.thread = &thread_identity;
    return key;
}

bool launch_look(void)
{
    if (tenancy() == TENANCY_FREE)
        atomic_store_explicit(&process.launch_devices, NO_GRANT, memory_order_release);
    else if (tenancy() == TENANCY_HELD && devices_all_ours())
        atomic_store_explicit(&process.launch_devices, (int)tenant_grant->device_count, memory_order_release);
    return launch_is_free();
}

CUresult launch_enter(struct launch_ticket *ticket, CUstream stream)
{
    ticket->governor = NULL;
    if (tenancy() == TENANCY_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    int device = device_of_stream(stream);
    if (device < 0)
        return device == DEVICE_FOREIGN ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    if (!terms_limit_core(tenant_terms(device)) || (capturing() && stream_capturing(stream)))
        return CUDA_SUCCESS;
    struct governor *governor = governor_of(device);
    if (governor == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    ticket->stream = stream_key(stream);
    if (gate_enter(&governor->gate, &ticket->stream))
        ticket->governor = governor;
    return CUDA_SUCCESS;
}

void launch_leave(const struct launch_ticket *ticket)
{
    if (ticket->governor != NULL)
        gate_leave(&ticket->governor->gate, &ticket->stream);
}

CUresult launch_on_several(CUresult (*real)(CUDA_LAUNCH_PARAMS *, unsigned, unsigned), CUDA_LAUNCH_PARAMS *launches,
                           unsigned count, unsigned flags)
{
    struct launch_ticket tickets[HETERO_MAX_DEVICES];
    unsigned entered = 0;
    CUresult answer = CUDA_SUCCESS;
    if (launches == NULL || count > HETERO_MAX_DEVICES) /* at most one for each device, and there are no more */
        return CUDA_ERROR_INVALID_VALUE;
    while (entered < count && answer == CUDA_SUCCESS) {
        answer = launch_enter(&tickets[entered], launches[entered].hStream);
        entered += answer == CUDA_SUCCESS;
    }
    if (answer == CUDA_SUCCESS)
        answer = real(launches, count, flags);
    while (entered > 0)
        launch_leave(&tickets[--entered]);
    return answer;
}
