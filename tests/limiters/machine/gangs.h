/* Gangs and what their programs do, on the machine of virtual.h. */
#ifndef HETERO_TESTS_GANGS_H
#define HETERO_TESTS_GANGS_H

#include "programs.h"
#include "trainings.h"

#define PERIOD_NS (100 * MS)

/* By how much rows are longer than shares where there is room (hetero/node/ledger/rows.py). */
#define SPARE_NS (4 * MS)

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

/* Each step ends with both devices idle for a tenth of it. */
static inline void idle_for_a_tenth(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 4; kernel++)
            tenant_launch(tenant, 0, 1600 * US);
        tenant_meet(tenant, 0, 0, 100 * US);
        tenant_synchronise(tenant);
        tenant_sleep(720 * US);
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

/* Two threads of which one at a time may run, also while it waits at a gate: one computes, one reduces. Whoever has
 * waited goes first, as with the lock of a Python interpreter. */
static struct {
    unsigned next, served;
} lock_of[TENANTS];

static inline void take_lock(const struct tenant *tenant)
{
    unsigned mine = lock_of[tenant - tenants].next++;
    while (lock_of[tenant - tenants].served != mine)
        tenant_sleep(20 * US);
}

static inline void leave_lock(const struct tenant *tenant)
{
    lock_of[tenant - tenants].served++;
}

static inline void reduce_under_lock(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        take_lock(tenant);
        tenant_meet(tenant, 1, 0, 100 * US);
        leave_lock(tenant);
        tenant_sleep(MS);
    }
}

static inline void compute_under_lock(struct tenant *tenant)
{
    lock_of[tenant - tenants].next = lock_of[tenant - tenants].served = 0;
    tenant_thread(tenant, reduce_under_lock);
    for (unsigned kernel = 1;; kernel++) {
        take_lock(tenant);
        tenant_launch(tenant, 0, 300 * US);
        leave_lock(tenant);
        tenant_sleep(8 * US);
        if (kernel % 64 == 0)
            tenant_synchronise(tenant);
    }
}

/* Two communicators in two streams, in whose order the processes do not agree. */
static inline void crossed(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned n = 0; n < 2; n++) {
            unsigned communicator = (n + tenant->card) % 2;
            tenant_launch(tenant, communicator, 200 * US);
            tenant_meet(tenant, communicator, communicator, 100 * US);
            tenant_sleep(8 * US);
        }
        if (tenant->steps % 8 == 7)
            tenant_synchronise(tenant);
    }
}

/* One thread that launches on two cards, of the program of tenants[0]; the other has none of its own. */
static inline void nothing(struct tenant *tenant)
{
    (void)tenant;
}

static inline void on_two_cards(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned card = 0; card < 2; card++)
            tenant_launch(tenant + card, 0, 300 * US);
        for (unsigned card = 0; card < 2; card++)
            tenant_meet(tenant + card, 0, 0, 100 * US);
        tenant_sleep(8 * US);
        if (tenant->steps % 8 == 7)
            for (unsigned card = 0; card < 2; card++)
                tenant_synchronise(tenant + card);
    }
}

static inline void together_on_two_cards(struct tenant *tenant)
{
    struct tenant *both[] = {tenant, tenant + 1};
    for (;; tenant->steps++) {
        for (unsigned card = 0; card < 2; card++)
            tenant_launch(both[card], 0, 300 * US);
        tenant_meet_together(both, 2, 100 * US);
        tenant_sleep(8 * US);
        if (tenant->steps % 8 == 7)
            tenant_synchronise(tenant);
    }
}

/* The second process waits for its data now and then. */
static inline void with_data(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 20; kernel++) {
            tenant_launch(tenant, 0, 200 * US);
            tenant_sleep(8 * US);
        }
        tenant_meet(tenant, 0, 0, 200 * US);
        tenant_synchronise(tenant);
        if (tenant->card == 1 && tenant->steps % 100 == 99)
            tenant_sleep(300 * MS);
    }
}

/* Ten milliseconds of work, then nothing for so long that it rests and its rows are lent. */
static inline void now_and_then(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        uint64_t came_ns = machine_now();
        for (unsigned kernel = 0; kernel < 30; kernel++) {
            tenant_launch(tenant, 0, 300 * US);
            if (kernel % 6 == 5)
                tenant_meet(tenant, 0, 0, 100 * US);
        }
        tenant_synchronise(tenant);
        uint64_t took_ns = machine_now() - came_ns;
        tenant->longest_ns = took_ns > tenant->longest_ns ? took_ns : tenant->longest_ns;
        tenant_sleep((100 + roll(tenant, 100)) * MS);
    }
}

/* A graph of so long with its all-reduces, again and again; and a kernel that never ends. */
static inline void graphs(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        tenant_meet(tenant, 0, 0, tenant->each_ns);
        tenant_sleep(50 * US);
        if (tenant->steps % 4 == 3)
            tenant_synchronise(tenant);
    }
}

static inline void endless(struct tenant *tenant)
{
    tenant_launch(tenant, 0, 3600 * SECOND);
    for (;; tenant->steps++) {
        tenant_launch(tenant, 1, 200 * US);
        tenant_sleep(8 * US);
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
            .gang_core = (uint16_t)(percent * 100),
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
