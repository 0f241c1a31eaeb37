/* Whether memory is charged, by the grant's policy (counted.h). */
#include "counted.h"

#include "../core/ledger.h"
#include "../core/tenant.h"

bool counted(int device)
{
    return device >= 0 && terms_policy(tenant_terms(device)) != HETERO_POLICY_OFF;
}

bool contexts_counted(int device)
{
    return counted(device) && (terms_flags(tenant_terms(device)) & HETERO_FLAG_CONTEXT) != 0;
}

void refund(int device, uint64_t bytes)
{
    if (device >= 0 && bytes > 0 && tenant_region() != NULL)
        ledger_release(tenant_region(), (unsigned)device, bytes);
}
