/* Makes a device's governor at the first limited launch to it, and retires all governors at exit (governors.h). */
#include "governors.h"

#include "../core/fault.h"
#include "../core/tenant.h"

#include <stdlib.h>

_Atomic(struct governor *) governors[HETERO_MAX_DEVICES];

/* Held while a governor is made. Guards the prepared ones, which no launch has needed yet. */
static pthread_mutex_t governors_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct governor *prepared_governors[HETERO_MAX_DEVICES];

/* Registered after the driver's own exit functions, so it runs before them, while the driver still works. */
static void retire_all(void)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (governor_known(device) != NULL)
            governor_retire(governor_known(device));
}

/* With `making` held. */
static struct governor *prepare(int device)
{
    struct region *region = tenant_region();
    if (prepared_governors[device] != NULL || region == NULL)
        return prepared_governors[device];
    struct hetero_region *shared = region->shared;
    prepared_governors[device] = governor_new(&driver_engine, tenant_terms(device), &shared->devices[device],
                                              tenant_directory(), (unsigned)device);
    if (prepared_governors[device] != NULL)
        governor_share(prepared_governors[device], &shared->gang, shared->devices, (unsigned)device,
                       tenant_grant->device_count);
    return prepared_governors[device];
}

bool governor_prepare(int device)
{
    pthread_mutex_lock(&governors_mutex);
    bool is_ready = prepare(device) != NULL;
    pthread_mutex_unlock(&governors_mutex);
    return is_ready;
}

struct governor *governor_make(int device)
{
    static bool is_registered; /* under `making` */
    pthread_mutex_lock(&governors_mutex);
    struct governor *governor = prepare(device);
    atomic_store_explicit(&governors[device], governor, memory_order_release);
    if (!is_registered)
        is_registered = atexit(retire_all) == 0;
    pthread_mutex_unlock(&governors_mutex);
    return governor;
}

void gates_before_context_ends(void *context)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES && context != NULL; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL && FAULT(context_ends_uncharged))
            gate_after_context_ended(&governor->gate, context, false);
        else if (governor != NULL)
            gate_before_context_ends(&governor->gate, context);
    }
}

void gates_after_context_ended(void *context, bool is_alive)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES && context != NULL; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL)
            gate_after_context_ended(&governor->gate, context, is_alive && !FAULT(context_ends_uncharged));
    }
}

void gates_before_stream_ends(void *stream)
{
    struct stream_key key = {.stream = stream};
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        struct governor *governor = governor_known(device);
        if (governor != NULL)
            gate_before_stream_ends(&governor->gate, &key);
    }
}

void governors_after_fork(void)
{
    governors_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++) {
        if (prepared_governors[device] != NULL)
            governor_after_fork(prepared_governors[device]);
        prepared_governors[device] = NULL;
        atomic_store(&governors[device], NULL);
    }
}
