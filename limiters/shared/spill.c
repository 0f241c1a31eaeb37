/* Spills device memory to managed memory (spill.h). */
#include "spill.h"

#include "charge.h"
#include "driver.h"

#include "../core/tenant.h"

/* The address that an entry's `link` has if its memory was spilled to the host. */
static char spilled_tag;

bool is_spilled(const struct entry *entry)
{
    return entry->link == &spilled_tag;
}

bool spills(result_t answer, int device)
{
    return answer == ERROR(OUT_OF_MEMORY) && counted(device) &&
           (terms_flags(tenant_terms(device)) & HETERO_FLAG_SPILL) != 0;
}

result_t settle_spill(pointer_t *pointer, int device, uint64_t bytes, uint64_t charged_bytes)
{
    result_t answer = DRIVER(MemAllocManaged)(pointer, bytes, VALUE(MEM_ATTACH_GLOBAL));
    return settle_pointer(answer, pointer, device, charged_bytes, &spilled_tag);
}

result_t allocate_spilled(pointer_t *pointer, int device, uint64_t bytes)
{
    result_t charge_result = charge(device, bytes);
    return charge_result != RESULT_OK ? charge_result : settle_spill(pointer, device, bytes, bytes);
}
