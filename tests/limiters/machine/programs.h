/* Programs of several kinds, and what they get when they run beside each other on the machine of virtual.h. */
#ifndef HETERO_TESTS_PROGRAMS_H
#define HETERO_TESTS_PROGRAMS_H

#include "check.h"
#include "h200.h"
#include "virtual.h"

#include "../../../limiters/timeshare/budget.h"

#define SECOND (1000 * MS)

enum { RUN_S = 10 };

static struct tenant tenants[TENANTS];
static struct hetero_region_device accounts[TENANTS];

/* Kernels of half a millisecond, eight of them queued. */
static const struct tenant KERNELS = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8};
/* Ones that a time slice of ten milliseconds ends in the middle of. */
static const struct tenant LONG_KERNELS = {.kernel_ns = 13 * MS, .host_ns = 3 * US, .in_flight = 4};
/* A decoder: 118 launches a token, and the token is read before the next one is begun. */
static const struct tenant DECODER = {.kernel_ns = 14 * US, .host_ns = 3 * US, .batch = 118, .in_flight = 1000};
/* An inference loop: 60 launches a request, 20 ms between two. */
static const struct tenant LOOP = {
    .kernel_ns = 15 * US, .host_ns = 20 * US, .batch = 60, .in_flight = 1000, .rest_ns = 20 * MS};
/* Training: kernels of 200 us, queued far ahead. */
static const struct tenant TRAINING = {.kernel_ns = 200 * US, .host_ns = 5 * US, .in_flight = 1000};
/* Graphs, one of which is 1.24 ms. */
static const struct tenant GRAPHS = {.kernel_ns = 1240 * US, .host_ns = 10 * US, .in_flight = 4};

/* A tenant of so much of the card, which is not there yet. */
static inline struct tenant *add(unsigned number, const struct tenant *like, unsigned percent)
{
    struct tenant *tenant = &tenants[number];
    *tenant = *like;
    tenant->terms = (struct hetero_grant_device){.core = percent * 100, .policy = HETERO_POLICY_FIXED};
    tenant->account = &accounts[number];
    accounts[number] = (struct hetero_region_device){0};
    return tenant;
}

static inline void begin(void)
{
    machine_begin(1);
}

static inline void together(unsigned count)
{
    for (unsigned t = 0; t < count; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(RUN_S * SECOND));
}

/* Launches of a tenant that has the card to itself and no limit. */
static inline double alone(const struct tenant *like)
{
    struct tenant *tenant = add(TENANTS - 1, like, 100);
    machine_begin(1);
    tenant_start(tenant);
    EXPECT(true, machine_run(RUN_S * SECOND));
    machine_end();
    machine_begin(1);
    return (double)tenant->launched;
}

/* What it got of its own speed alone, and of the card in the worst second. */
static inline void expect_of(unsigned number, double percent, double points, double in_any_second, double native)
{
    const struct tenant *tenant = &tenants[number];
    double got = 100 * (double)tenant->launched / native, worst = 0;
    for (unsigned s = 2; s < RUN_S; s++) {
        double off = tenant_got(tenant, s, s + 1) - tenant_got(tenant, 2, RUN_S);
        worst = off > worst ? off : -off > worst ? -off : worst;
    }
    printf("tenant %u: %.2f of %.0f, the worst second off by %.2f\n", number, got, percent, worst);
    EXPECT_NEAR(percent, points, got);
    EXPECT(true, worst <= in_any_second);
}

static inline void pair(const struct tenant *one, unsigned percent, const struct tenant *other, unsigned others,
                        double points)
{
    begin();
    double native = alone(one), natives = alone(other);
    add(0, one, percent);
    add(1, other, others);
    together(2);
    expect_of(0, percent, points, 3, native);
    expect_of(1, others, points, 3, natives);
    machine_end();
}

#endif
