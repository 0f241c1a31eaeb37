/* What becomes of a gang and of programs beside it when its processes come late, end, begin anew or are resized, in
 * virtual time. */
#include "machine/gangs.h"

/* No grant out of debt waits longer for a launch to pass. */
#define WAIT_MOST_NS (500 * MS)
#define LOOK_NS      (5 * MS)

/* Two processes of a gang at so much on two cards, and a program of one card beside each of them or not. */
static struct {
    unsigned count;
    double gang_alone, single_alone;
    uint64_t before[TENANTS]; /* launches when what is watched began */
    uint64_t waits_ns[TENANTS],
        launched[TENANTS]; /* since when it waits out of debt, 0: it does not; at the last look */
    uint64_t longest_ns;   /* that one of one card did so */
} watched;

static void begin_ranks(void (*body)(struct tenant *))
{
    watched.gang_alone = gang_alone(body);
    watched.single_alone = alone(&KERNELS) / RUN_S;
    machine_end();
}

static void begin_with(void (*body)(struct tenant *), unsigned percent, unsigned singles, uint64_t late_ns)
{
    begin_gangs();
    machine_delay_timers(60 * US);
    watched.longest_ns = 0;
    for (unsigned rank = 0; rank < 2; rank++) {
        member(rank, 0, rank, body, percent, 0)->from_ns = rank * late_ns;
        tenant_start(&tenants[rank]);
    }
    for (unsigned card = 0; singles > 0 && card < 2; card++) {
        add(2 + card, &KERNELS, singles)->card = card;
        tenant_start(&tenants[2 + card]);
    }
    watched.count = singles > 0 ? 4 : 2;
    memset(watched.waits_ns, 0, sizeof watched.waits_ns);
}

static void watch(uint64_t ns)
{
    for (unsigned t = 0; t < watched.count; t++)
        watched.before[t] = watched.launched[t] = tenants[t].launched;
    for (uint64_t gone_ns = 0; gone_ns < ns; gone_ns += LOOK_NS) {
        EXPECT(true, machine_run(LOOK_NS));
        for (unsigned t = 2; t < watched.count; t++) {
            bool waits = tenant_is_kept(&tenants[t]) && tenants[t].launched == watched.launched[t];
            watched.launched[t] = tenants[t].launched;
            watched.waits_ns[t] = waits ? watched.waits_ns[t] + LOOK_NS : 0;
            watched.longest_ns = later(watched.longest_ns, watched.waits_ns[t]);
        }
    }
    EXPECT(true, watched.longest_ns < WAIT_MOST_NS);
}

/* After so many seconds: what the gang got, and the worse of those beside it. */
static double shares(const char *what, unsigned seconds, double *single)
{
    double got = gang_got(&tenants[0], watched.before[0], seconds, watched.gang_alone);
    *single = 100;
    for (unsigned t = 2; t < watched.count; t++) {
        double one = gang_got(&tenants[t], watched.before[t], seconds, watched.single_alone);
        *single = one < *single ? one : *single;
    }
    printf("%s: %.2f beside %.2f, who waited for %.0f ms at most\n", what, got, *single,
           (double)watched.longest_ns / 1e6);
    return got;
}

static void expect_halves(const char *what, unsigned seconds)
{
    double single;
    watch(seconds * SECOND);
    EXPECT_NEAR(50, 3, shares(what, seconds, &single));
    EXPECT(true, single >= 47);
}

/* The first spins meanwhile. The driver gives a program beside it less than half of the card. */
TEST(a_gang_one_of_whose_processes_comes_ten_seconds_late_has_its_share_at_once)
{
    static void (*const programs[])(struct tenant *) = {tensor_parallel, data_parallel};
    for (unsigned p = 0; p < 2; p++) {
        begin_ranks(programs[p]);
        for (unsigned singles = 0; singles <= 50; singles += 50) {
            double single;
            begin_with(programs[p], 50, singles, 11 * SECOND);
            EXPECT(true, machine_run(2 * SECOND));
            watch(8 * SECOND);
            shares("before the second comes", 8, &single);
            EXPECT(true, single >= 45);
            expect_halves("since then", 6); /* a row is 0.8 points of it */
            machine_end();
        }
    }
}

static void one_by_one(struct tenant *tenant)
{
    for (;;) {
        tenant_launch(tenant, 0, tenant->each_ns);
        tenant_synchronise(tenant);
    }
}

static void mostly_short(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 1000; kernel++)
            tenant_launch(tenant, 0, 100 * US);
        tenant_launch(tenant, 0, 50 * MS);
        tenant_meet(tenant, 0, 0, 100 * US);
        tenant_synchronise(tenant);
    }
}

/* What launches take on average says nothing of it, so more than one may be in flight. */
TEST(a_long_kernel_now_and_then_in_a_gang_costs_others_nothing)
{
    begin_ranks(mostly_short);
    begin_with(mostly_short, 50, 50, 0);
    EXPECT(true, machine_run(3 * SECOND));
    expect_halves("now and then a long one", 8);
    machine_end();
}

/* Its second card has no process, or one that does nothing: nobody comes for whom they may have waited. */
TEST(kernels_of_seconds_on_one_card_of_a_gang_have_its_share)
{
    enum { WATCHED_S = 60 };
    for (unsigned processes = 1; processes <= 2; processes++) {
        begin_gangs();
        for (unsigned rank = 0; rank < processes; rank++) {
            member(rank, 0, rank, rank == 0 ? one_by_one : nothing, 30, 0)->each_ns = 3 * SECOND;
            tenant_start(&tenants[rank]);
        }
        EXPECT(true, machine_run(WATCHED_S * SECOND));
        double got = 100 * (double)tenants[0].done_ns / ((double)WATCHED_S * SECOND);
        printf("%.2f of 30\n", got);
        EXPECT_NEAR(30, 5, got); /* a kernel more or less */
        machine_end();
    }
}

TEST(a_gang_whose_processes_begin_anew_has_its_share_again)
{
    begin_ranks(tensor_parallel);
    for (unsigned singles = 0; singles <= 50; singles += 50) {
        begin_with(tensor_parallel, 50, singles, 0);
        EXPECT(true, machine_run(3 * SECOND));
        tenant_kill(&tenants[1]);
        watch(2 * SECOND);
        tenant_kill(&tenants[0]);
        for (unsigned rank = 0; rank < 2; rank++)
            tenant_start(&tenants[rank]);
        EXPECT(true, machine_run(SECOND));
        expect_halves("anew", 4);
        machine_end();
    }
}

TEST(a_gang_one_of_whose_processes_was_stopped_has_its_share_again)
{
    begin_ranks(tensor_parallel);
    for (unsigned singles = 0; singles <= 50; singles += 50) {
        begin_with(tensor_parallel, 50, singles, 0);
        EXPECT(true, machine_run(3 * SECOND));
        tenant_stop(&tenants[1]);
        watch(3 * SECOND);
        tenant_continue(&tenants[1]);
        EXPECT(true, machine_run(SECOND));
        expect_halves("goes on", 4);
        machine_end();
    }
}

/* In the middle of rows. */
TEST(a_gang_that_is_resized_has_its_new_share)
{
    static const unsigned percents[] = {30, 70, 20, 60};
    begin_ranks(tensor_parallel);
    for (unsigned singles = 0; singles <= 25; singles += 25) {
        begin_with(tensor_parallel, 50, singles, 0);
        EXPECT(true, machine_run(3 * SECOND));
        for (unsigned p = 0; p < 4; p++) {
            while (regions[0].gang.phase != GANG_OPEN)
                EXPECT(true, machine_run(MS));
            EXPECT(true, machine_run((3 + 2 * p) * MS));
            for (unsigned rank = 0; rank < 2; rank++) {
                tenants[rank].terms.core = percents[p] * 100;
                tenants[rank].row.gang_core = (uint16_t)(percents[p] * 100);
                tenants[rank].row.length_ns = percents[p] * PERIOD_NS / 100;
                tenant_resize(&tenants[rank]);
            }
            EXPECT(true, machine_run(200 * MS));
            double single;
            watch(4 * SECOND);
            EXPECT_NEAR(percents[p], 3, shares("resized", 4, &single));
            EXPECT(true, singles == 0 || single >= singles - 3);
        }
        machine_end();
    }
}
