/* The limits of this process: its grant, found once, and the usage region that it shares with the grant's processes. */
#ifndef HETERO_TENANT_H
#define HETERO_TENANT_H

#include "grant.h"
#include "region.h"

enum tenancy {
    TENANCY_UNKNOWN = 0, /* the grant was not searched for yet */
    TENANCY_FREE,        /* no grant: every call goes to the driver unchanged */
    TENANCY_HELD,        /* the grant's limits are enforced */
    TENANCY_REFUSED,     /* a grant that cannot be read: allocations and launches are refused */
};

/* A variable `device` is a device's number in the grant, or one of these. */
enum {
    DEVICE_FOREIGN = -1, /* not in the grant: its limit is 0 */
    DEVICE_NONE = -2     /* the call means no device: not limited */
};

/* State that is zero in a child of this process, however the child was made: the kernel wipes these pages at a fork
 * (MADV_WIPEONFORK). So the child's first call of tenancy() leads to tenancy_look(), and other calls cost nothing more.
 */
#define PROCESS_BYTES 65536 /* the largest page of a supported kernel */
extern struct process {
    _Atomic int tenancy;             /* enum tenancy; written by tenancy_look() */
    _Atomic int launch_device_count; /* how many devices a launch has to check; 0: not known yet (shared/launch.h) */
    pthread_mutex_t tenancy_mutex;   /* locked in tenant.c only, around no driver or loader call */
} __attribute__((aligned(PROCESS_BYTES))) process;

/* Find the grant, or in a child of fork forget the parent's state. */
enum tenancy tenancy_look(void);

/* Have `handler` called in each child of fork, before its other calls, to forget the parent's state. */
void tenancy_in_child(void (*handler)(void));

static inline enum tenancy tenancy(void)
{
    int known = atomic_load_explicit(&process.tenancy, memory_order_acquire);
    return __builtin_expect(known != TENANCY_UNKNOWN, 1) ? (enum tenancy)known : tenancy_look();
}

/* The grant, valid while tenancy() is TENANCY_HELD; constant from then on. */
extern const struct hetero_grant *tenant_grant;

/* The terms of the grant's device `device`. The node changes them in place: read through the functions below. */
static inline const struct hetero_grant_device *tenant_terms(int device)
{
    return &tenant_grant->devices[device];
}

/* The grant's device with this UUID, as the driver's 16 bytes or as its text; or DEVICE_FOREIGN. */
int tenant_device(const uint8_t uuid[16]);
int tenant_device_named(const char *uuid);

/* The path of the grant's directory, which has its other files, too. */
const char *tenant_directory(void);

/* What is wrong with a grant, as a text; NULL: nothing, and `uuids` has the UUIDs of its devices. */
const char *grant_problem(const struct hetero_grant *grant, uint8_t uuids[HETERO_MAX_DEVICES][16]);

/* The usage region, opened on first use; NULL when it cannot be used (the caller refuses). */
struct region *tenant_region(void);

static inline uint64_t terms_memory(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->memory_bytes, __ATOMIC_RELAXED);
}

static inline uint32_t terms_core(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->core, __ATOMIC_RELAXED);
}

static inline uint32_t terms_policy(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->policy, __ATOMIC_RELAXED);
}

static inline uint32_t terms_priority(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->priority, __ATOMIC_RELAXED);
}

static inline uint32_t terms_flags(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->flags, __ATOMIC_RELAXED);
}

static inline uint64_t terms_context(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->context_bytes, __ATOMIC_RELAXED);
}

static inline uint64_t terms_owes_until(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->owes_until_ns, __ATOMIC_RELAXED);
}

static inline bool terms_by_service(const struct hetero_grant_device *terms)
{
    return (terms_flags(terms) & HETERO_FLAG_SERVICE) != 0;
}

static inline bool terms_limit_core(const struct hetero_grant_device *terms)
{
    return terms_core(terms) < HETERO_CORE_FULL && terms_policy(terms) != HETERO_POLICY_OFF;
}

#endif
