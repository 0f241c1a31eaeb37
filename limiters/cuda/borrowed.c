/* Memory of other processes and other APIs: charged where it was made, while that has it. When its maker lets go of it,
 * the driver counts it for who has it open (measured on an NVIDIA H100, driver 580.159.04).
 */
#include "borrowed.h"

#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "uncounted.h"

#include "../core/ledger.h"
#include "../core/log.h"
#include "../nvml/shim.h"

uint64_t card_used(int device)
{
    uint64_t bytes;
    return nvml_card_memory(tenant_terms(device)->uuid, &bytes) ? bytes : 0;
}

bool card_got_back(int device, uint64_t before, uint64_t bytes)
{
    uint64_t after;
    return nvml_card_memory(tenant_terms(device)->uuid, &after) && after <= before && before - after >= bytes;
}

void stays_charged(int device, uint64_t bytes)
{
    unseen_add(device, (int64_t)bytes);
    log_line(LOG_INFO, "device %d: %llu bytes that others have, too, are not back: they stay charged", device,
             (unsigned long long)bytes);
}

void say_shared(int device, int64_t bytes)
{
    if (bytes != 0 && counted(device) && tenant_region() != NULL)
        ledger_say(tenant_region(), HETERO_SAID_SHARED, (unsigned)device, bytes);
}

void say_opened(int change)
{
    for (uint32_t device = 0; tenant_region() != NULL && device < tenant_grant->device_count; device++)
        if (counted((int)device))
            ledger_say(tenant_region(), HETERO_SAID_OPENED, device, change);
}

void pointer_shared(const struct entry *held)
{
    struct entry previous, entry = {.kind = HELD_SHARED, .key = held->key};
    if (table_put(&entry, &previous) && previous.kind == 0)
        say_shared(held->device, (int64_t)held->bytes);
}

CUresult share_pointer(CUresult (*real)(CUipcMemHandle *, CUdeviceptr), CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct entry held;
    CUresult answer = real(handle, pointer);
    if (answer == CUDA_SUCCESS && table_get(HELD_POINTER, pointer, &held))
        pointer_shared(&held);
    return answer;
}

#define LOOK_AFTER(call)                                                                                               \
    do {                                                                                                               \
        CUresult answer = call;                                                                                        \
        if (answer == CUDA_SUCCESS)                                                                                    \
            uncounted_look(device_current());                                                                          \
        return answer;                                                                                                 \
    } while (0)

CUresult open_shared(CUresult (*real)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *pointer,
                     CUipcMemHandle handle, unsigned flags)
{
    struct entry previous, entry = {.kind = HELD_OPENED, .bytes = 1};
    CUresult answer = real(pointer, handle, flags);
    if (answer == CUDA_SUCCESS) {
        entry.key = *pointer;
        entry.owner = context_current();
        if (table_take(HELD_OPENED, entry.key, &previous))
            entry.bytes += previous.bytes;
        table_put(&entry, &previous);
        say_opened(1);
    }
    LOOK_AFTER(answer);
}

CUresult close_shared(CUresult (*real)(CUdeviceptr), CUdeviceptr pointer)
{
    struct entry previous, entry = {0};
    CUresult answer = real(pointer);
    if (answer == CUDA_SUCCESS && table_take(HELD_OPENED, pointer, &entry)) {
        if (--entry.bytes > 0)
            table_put(&entry, &previous);
        say_opened(-1);
    }
    LOOK_AFTER(answer);
}

void opened_over(const struct entry *entry)
{
    say_opened(-(int)entry->bytes);
}

CUresult import_pool(CUresult (*real)(CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long),
                     CUmemoryPool *pool, void *shared, CUmemAllocationHandleType type, unsigned long long flags)
{
    LOOK_AFTER(real(pool, shared, type, flags));
}

CUresult import_pointer(CUresult (*real)(CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *), CUdeviceptr *pointer,
                        CUmemoryPool pool, CUmemPoolPtrExportData *shared)
{
    LOOK_AFTER(real(pointer, pool, shared));
}

CUresult import_memory(CUresult (*real)(CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *),
                       CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *shared)
{
    LOOK_AFTER(real(memory, shared));
}

CUresult let_go_memory(CUresult (*real)(CUexternalMemory), CUexternalMemory memory)
{
    LOOK_AFTER(real(memory));
}
