/* NVML's memory figures are the grant's, for programs that size themselves by them and for those that show them. */
#include "bodies.h"
#include "device.h"
#include "driver.h"

#include "../core/ledger.h"
#include "../core/tenant.h"

struct memory_figures { /* bytes */
    uint64_t total_bytes, used_bytes, free_bytes;
};

/* The grant's figures, if the whole card has `card_free_bytes` free. False: NVML's own answer is passed on. */
static bool read_grant_figures(nvmlDevice_t handle, uint64_t card_free_bytes, struct memory_figures *figures)
{
    uint32_t device_bits = device_limits(handle);
    bool may_spill = false;
    *figures = (struct memory_figures){0};
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        if (device_bits >> device & 1) {
            const struct hetero_grant_device *terms = tenant_terms((int)device);
            uint64_t limit_bytes = terms_memory(terms), used_bytes = ledger_used(tenant_region(), device);
            figures->total_bytes += limit_bytes;
            figures->used_bytes += used_bytes < limit_bytes
                                       ? used_bytes
                                       : limit_bytes; /* the limit may have been lowered below the use */
            may_spill = may_spill || (terms_flags(terms) & HETERO_FLAG_SPILL) != 0;
        }
    uint64_t remaining_bytes = figures->total_bytes - figures->used_bytes;
    figures->free_bytes = card_free_bytes < remaining_bytes && !may_spill ? card_free_bytes : remaining_bytes;
    return device_bits != 0;
}

/* This form has no figure of reserved memory, so NVML counts it as used. */
nvmlReturn_t granted_memory(nvmlReturn_t (*real)(nvmlDevice_t, nvmlMemory_t *), nvmlDevice_t handle,
                            nvmlMemory_t *memory)
{
    struct memory_figures grant;
    nvmlReturn_t answer = real(handle, memory);
    if (answer == NVML_SUCCESS && read_grant_figures(handle, memory->free, &grant))
        *memory = (nvmlMemory_t){
            .total = grant.total_bytes, .free = grant.free_bytes, .used = grant.total_bytes - grant.free_bytes};
    return answer;
}

nvmlReturn_t granted_memory_v2(nvmlReturn_t (*real)(nvmlDevice_t, nvmlMemory_v2_t *), nvmlDevice_t handle,
                               nvmlMemory_v2_t *memory)
{
    struct memory_figures grant;
    nvmlReturn_t answer = real(handle, memory);
    if (answer == NVML_SUCCESS && read_grant_figures(handle, memory->free, &grant)) {
        memory->total = grant.total_bytes;
        memory->used = grant.used_bytes;
        memory->free = grant.free_bytes;
        memory->reserved = grant.total_bytes - grant.used_bytes -
                           grant.free_bytes; /* granted, but other programs use it now */
    }
    return answer;
}
