/* Gangs and what their programs do, on the machine of virtual.h. */
#ifndef HETERO_TESTS_GANGS_H
#define HETERO_TESTS_GANGS_H

#include "programs.h"

#define PERIOD_NS (100 * MS)

static struct hetero_region regions[TENANTS];

/* A layer of a transformer on several cards: kernels, then an all-reduce that the next one needs. */
static inline void tensor_parallel(struct tenant *tenant)
{
    for (unsigned layer = 0;; layer++) {
        for (unsigned kernel = 0; kernel < 6; kernel++) {
            tenant_launch(tenant, 0, 60 * US);
            tenant_sleep(6 * US);
        }
        tenant_meet(tenant, 0, 0, 40 * US);
        tenant_sleep(6 * US);
        if (layer % 16 == 15) {
            tenant_synchronise(tenant);
            tenant->steps++;
        }
    }
}

/* A step of data-parallel training: 600 kernels, and beside the later half an all-reduce of each 40 in a stream of its
 * own; the optimizer's wait for those. */
static inline void data_parallel(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 600; kernel++) {
            tenant_launch(tenant, 0, 85 * US);
            tenant_sleep(8 * US);
            if (kernel >= 200 && kernel % 40 == 39 && kernel < 560) {
                tenant_follow(tenant, 1);
                tenant_meet(tenant, 1, 0, 500 * US);
            }
            if (kernel == 560)
                tenant_follow(tenant, 0);
        }
        tenant_synchronise(tenant);
        tenant_sleep(200 * US);
    }
}

/* Nothing but all-reduces. */
static inline void all_reduce(struct tenant *tenant)
{
    for (unsigned done = 1;; done++) {
        tenant_meet(tenant, 0, 0, tenant->each_ns);
        tenant_sleep(8 * US);
        if (done % 32 == 0) {
            tenant_synchronise(tenant);
            tenant->steps++;
        }
    }
}

/* A process of gang `gang`, which has this row from a point of the period on. */
static inline struct tenant *member(unsigned number, unsigned gang, unsigned card, void (*body)(struct tenant *),
                                    unsigned percent, unsigned from_percent)
{
    static const struct tenant none;
    struct tenant *tenant = &tenants[number];
    *tenant = none;
    tenant->terms = (struct hetero_grant_device){.core = percent * 100, .policy = HETERO_POLICY_FIXED};
    tenant->region = &regions[gang];
    tenant->card = card;
    tenant->body = body;
    tenant->each_ns = 700 * US;
    if (percent < 100)
        tenant->row = (struct hetero_board_row){
            .gang_core = percent * 100,
            .begin_ns = from_percent * PERIOD_NS / 100,
            .length_ns = percent * PERIOD_NS / 100,
            .period_ns = PERIOD_NS,
        };
    return tenant;
}

static inline void begin_gangs(void)
{
    machine_begin(1);
    memset(regions, 0, sizeof regions);
}

/* Steps a second of such a gang on two cards, alone and without limit. */
static inline double gang_alone(void (*body)(struct tenant *))
{
    enum { SECONDS_ALONE = 4 };
    begin_gangs();
    for (unsigned rank = 0; rank < 2; rank++)
        tenant_start(member(rank, 0, rank, body, 100, 0));
    EXPECT(true, machine_run(SECONDS_ALONE * SECOND));
    double steps = (double)tenants[0].launched / SECONDS_ALONE;
    machine_end();
    return steps;
}

/* Launches in the time since, in percent of those alone. */
static inline double gang_got(const struct tenant *tenant, uint64_t launched, unsigned seconds, double alone)
{
    return 100 * (double)(tenant->launched - launched) / seconds / alone;
}

#endif
