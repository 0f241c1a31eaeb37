/* Reads the memory in use on a card, before and after something is freed (card_use.h). */
#include "card_use.h"

#include "counted.h"
#include "uncounted.h"

#include "../core/fault.h"
#include "../core/ledger.h"
#include "../core/log.h"
#include "../core/tenant.h"
#include "management.h"

/* The card's use is read before and after the process's. Of the two figures the smaller one counts before the free, and
 * the larger one after it. So nothing that other threads take or free meanwhile is taken for the freed memory. */
static struct card_use read_card_use(int device, bool is_after)
{
    const char *uuid = tenant_terms(device)->uuid;
    struct card_use use = {0};
    uint64_t driver_bytes, second_card_bytes = 0;
    use.is_known = management_card_memory(uuid, &use.card_bytes);
    use.is_process_listed = management_process_memory(uuid, &driver_bytes);
    use.process_bytes = (use.is_process_listed ? (int64_t)driver_bytes : 0) + unseen_bytes(device);
    use.is_known = use.is_known && management_card_memory(uuid, &second_card_bytes);
    use.card_bytes = is_after == (use.card_bytes > second_card_bytes) ? use.card_bytes : second_card_bytes;
    return use;
}

static bool read_returned_bytes(int device, struct card_use *use)
{
    struct region *region = tenant_region();
    return region != NULL &&
           ledger_returned(region, (unsigned)device, &use->own_returned_bytes, &use->others_returned_bytes);
}

struct card_use card_use(int device)
{
    struct card_use returned = {0};
    bool is_known = read_returned_bytes(device, &returned);
    struct card_use use = read_card_use(device, false);
    use.is_known = use.is_known && is_known;
    use.own_returned_bytes = returned.own_returned_bytes;
    use.others_returned_bytes = returned.others_returned_bytes;
    return use;
}

/* Other processes free memory before they count it as returned, so the counts are read last. */
bool card_got_back(int device, struct card_use use_before, uint64_t bytes)
{
    if (!use_before.is_known)
        return false;
    struct card_use use_after = read_card_use(device, true); /* without a context NVML does not list the process */
    if (!use_after.is_known || !read_returned_bytes(device, &use_after) || use_after.card_bytes > use_before.card_bytes)
        return false;
    uint64_t lost_bytes = use_before.is_process_listed && use_after.process_bytes < use_before.process_bytes
                              ? (uint64_t)(use_before.process_bytes - use_after.process_bytes)
                              : 0;
    uint64_t others_bytes =
        use_after.others_returned_bytes - use_before.others_returned_bytes +
        (use_before.is_process_listed ? 0 : use_after.own_returned_bytes - use_before.own_returned_bytes);
    return others_bytes < UINT64_MAX / 2 &&
           use_before.card_bytes - use_after.card_bytes >=
               (lost_bytes > bytes ? lost_bytes : bytes) + FAULT_VALUE(others_frees_believed, others_bytes, 0);
}

void leave_charged(int device, uint64_t bytes)
{
    unseen_add(device, (int64_t)bytes);
    log_line(LOG_INFO, "device %d: %llu bytes that others have, too, are not back: they stay charged", device,
             (unsigned long long)bytes);
}

void report_shared(int device, int64_t bytes)
{
    if (bytes != 0 && counted(device) && tenant_region() != NULL)
        ledger_report(tenant_region(), HETERO_REPORT_SHARED, (unsigned)device, bytes);
}

void report_opened(int change)
{
    for (uint32_t device = 0; tenant_region() != NULL && device < tenant_grant->device_count; device++)
        if (counted((int)device))
            ledger_report(tenant_region(), HETERO_REPORT_OPENED, device, change);
}
