/* What this process is held to: its grant, found once, and the region it shares with the rest of its grant. */
#ifndef HETERO_TENANT_H
#define HETERO_TENANT_H

#include "grant.h"
#include "region.h"

enum tenancy {
    TENANCY_UNKNOWN = 0, /* not asked for yet */
    TENANCY_FREE,        /* no grant: every call passes straight through */
    TENANCY_HELD,        /* a grant, and it holds */
    TENANCY_REFUSED,     /* a grant that cannot be understood: allocations and launches are refused */
};

/* What a device is to this process: the number of the grant's device that it is, or one of these. */
enum { DEVICE_FOREIGN = -1, DEVICE_NONE = -2 }; /* not in the grant: limit 0; no device meant: not limited */

/* What a child of this process finds zero, however it was made: the kernel wipes these pages at a fork
 * (MADV_WIPEONFORK). So the first question that a child asks leads it to tenancy_look(), at no cost to anybody else. */
#define PROCESS_BYTES 65536 /* the largest page of a supported kernel */
extern struct process {
    _Atomic int tenancy;        /* enum tenancy; written by tenancy_look() */
    _Atomic int launch_devices; /* the launchers' own word */
    pthread_mutex_t looking;    /* held only in tenant.c: no driver and no loader call inside */
} __attribute__((aligned(PROCESS_BYTES))) process;

enum tenancy tenancy_look(void);

/* In a child, before anything else is asked: forget what is the parent's. Said once for each `forget`. */
void tenancy_in_child(void (*forget)(void));

static inline enum tenancy tenancy(void)
{
    int found = atomic_load_explicit(&process.tenancy, memory_order_acquire);
    return __builtin_expect(found != TENANCY_UNKNOWN, 1) ? (enum tenancy)found : tenancy_look();
}

/* The grant while tenancy() is TENANCY_HELD; written before that is said, then constant. */
extern const struct hetero_grant *tenant_grant;

/* The terms of the grant's device `device`. The node changes them in place: read through the functions below. */
static inline const struct hetero_grant_device *tenant_terms(int device)
{
    return &tenant_grant->devices[device];
}

/* The grant's device with this UUID, as the driver's 16 bytes or as it prints it; or DEVICE_FOREIGN. */
int tenant_device(const uint8_t uuid[16]);
int tenant_device_named(const char *uuid);

/* The grant's directory, where its other files are. */
const char *tenant_directory(void);

/* What is wrong with a grant; NULL: nothing, and `uuids` holds its devices'. */
const char *grant_fault(const struct hetero_grant *grant, uint8_t uuids[HETERO_MAX_DEVICES][16]);

/* The usage region, opened on first use; NULL when it cannot be used (the caller refuses). */
struct region *tenant_region(void);

static inline uint64_t terms_memory(const struct hetero_grant_device *terms)
{
    return __atomic_load_n(&terms->memory, __ATOMIC_RELAXED);
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

static inline bool terms_by_service(const struct hetero_grant_device *terms)
{
    return (terms_flags(terms) & HETERO_FLAG_SERVICE) != 0;
}

static inline bool terms_limit_core(const struct hetero_grant_device *terms)
{
    return terms_core(terms) < HETERO_CORE_FULL && terms_policy(terms) != HETERO_POLICY_OFF;
}

#endif
