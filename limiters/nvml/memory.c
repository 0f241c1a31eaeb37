/* What NVML says of memory, for programs that size themselves by it and for those that show it: the grant. */
#include "bodies.h"
#include "device.h"
#include "driver.h"

#include "../core/ledger.h"
#include "../core/tenant.h"

struct figures { /* bytes */
    uint64_t total, used, free;
};

/* The grant's figures, where the whole card has `card_free` left; false where the library's own answer stands. */
static bool granted(nvmlDevice_t device, uint64_t card_free, struct figures *figures)
{
    uint32_t devices = device_limits(device);
    bool beyond = false;
    *figures = (struct figures){0};
    for (unsigned each = 0; each < HETERO_MAX_DEVICES; each++)
        if (devices >> each & 1) {
            const struct hetero_grant_device *terms = tenant_terms((int)each);
            uint64_t limit = terms_memory(terms), used = ledger_used(tenant_region(), each);
            figures->total += limit;
            figures->used += used < limit ? used : limit; /* the limit may be less now than what was allocated */
            beyond = beyond || (terms_flags(terms) & HETERO_FLAG_SPILL) != 0;
        }
    uint64_t left = figures->total - figures->used;
    figures->free = card_free < left && !beyond ? card_free : left;
    return devices != 0;
}

/* Without a figure of what is reserved, NVML counts that as used. */
nvmlReturn_t granted_memory(nvmlReturn_t (*real)(nvmlDevice_t, nvmlMemory_t *), nvmlDevice_t device,
                            nvmlMemory_t *memory)
{
    struct figures grant;
    nvmlReturn_t answer = real(device, memory);
    if (answer == NVML_SUCCESS && granted(device, memory->free, &grant))
        *memory = (nvmlMemory_t){.total = grant.total, .free = grant.free, .used = grant.total - grant.free};
    return answer;
}

nvmlReturn_t granted_memory_v2(nvmlReturn_t (*real)(nvmlDevice_t, nvmlMemory_v2_t *), nvmlDevice_t device,
                               nvmlMemory_v2_t *memory)
{
    struct figures grant;
    nvmlReturn_t answer = real(device, memory);
    if (answer == NVML_SUCCESS && granted(device, memory->free, &grant)) {
        memory->total = grant.total;
        memory->used = grant.used;
        memory->free = grant.free;
        memory->reserved = grant.total - grant.used - grant.free; /* what the card has no room for now */
    }
    return answer;
}
