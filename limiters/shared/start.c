/* Prepares the limiter before the driver gets a call (start.h). */
#include "start.h"

#include "calls.h"
#include "capturing.h"
#include "governors.h"
#include "recording.h"

#include "../core/fault.h"
#include "../core/region.h"
#include "../core/table.h"
#include "../core/tenant.h"
#include "management.h"

static void forget_parent(void)
{
    calls_after_fork();
    table_after_fork();
    governors_after_fork();
    books_after_fork();
    capture_after_fork();
    recording_after_fork();
    atomic_store(&first_call_made, false);
}

/* Open files and find functions that a launch may need later, when the program may not be able to open files any more.
 * This is done before the driver gets a call, and before the limiter has a thread. */
result_t prepare(void)
{
    struct region *region = tenancy() == TENANCY_REFUSED ? NULL : tenant_region();
    prepare_charges();
    if (region == NULL || !region_lock(region))
        return ERROR(NOT_PERMITTED);
    region_unlock(region);
    tenancy_in_child(forget_parent);
    management_prepare();
    for (int device = 0; device < (int)tenant_grant->device_count; device++)
        if (terms_limit_core(tenant_terms(device)) && !FAULT(governor_unprepared) && !governor_prepare(device))
            return ERROR(NOT_PERMITTED);
    return RESULT_OK;
}

/* At the first call of an API without a first function. If preparing fails, the calls that need it fail later. */
static void first_call(void)
{
    prepare();
    atomic_store_explicit(&first_call_made, true, memory_order_relaxed);
}

AT_FIRST_CALL(first_call);
