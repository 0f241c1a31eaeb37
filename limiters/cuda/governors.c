/* Makes a governor at the first limited launch to its device, and retires all of them at exit (governors.h). */
#include "governors.h"

#include "cuda_engine.h"

#include "../core/tenant.h"

#include <stdlib.h>

_Atomic(struct governor *) governors[HETERO_MAX_DEVICES];

/* Held while one is made. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* Registered after the driver's own exit functions, so it runs before them: the driver is still whole. */
static void retire_all(void)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (governor_known(device) != NULL)
            governor_retire(governor_known(device));
}

struct governor *governor_make(int device)
{
    struct region *region = tenant_region();
    if (region == NULL)
        return NULL;
    static bool registered; /* under `making` */
    pthread_mutex_lock(&making);
    struct governor *governor = governor_known(device);
    if (governor == NULL) {
        governor = governor_new(&cuda_engine, tenant_terms(device), &region->shared->devices[device],
                                tenant_directory(), (unsigned)device);
        atomic_store_explicit(&governors[device], governor, memory_order_release);
        if (!registered)
            registered = atexit(retire_all) == 0;
    }
    pthread_mutex_unlock(&making);
    return governor;
}

void governors_after_fork(void)
{
    making = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        if (governor_known(device) != NULL)
            governor_after_fork(governor_known(device));
        atomic_store(&governors[device], NULL);
    }
}
