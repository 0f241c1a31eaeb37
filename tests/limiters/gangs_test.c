/* Gangs in virtual time: programs whose processes wait for each other on several cards. */
#include "machine/gangs.h"

static void (*const bodies[])(struct tenant *) = {tensor_parallel, data_parallel, all_reduce};
static const char *const names[] = {"tensor parallel", "data parallel", "all-reduce"};
static const double slacks[] = {3, 2, 3};

static void report(const char *what, const struct tenant *tenant, double got)
{
    const struct hetero_region_gang *gang = &tenant->region->gang;
    printf("%s: %.2f; %u rows, %u overruns, %.2f ms to end one, %.1f let through in one, spun %.1f ms\n", what, got,
           (unsigned)gang->rows, (unsigned)gang->overruns, (double)gang->overrun_ns / 1e6 / (double)(gang->rows + 1),
           (double)gang->passes / (double)(gang->rows + 1), (double)tenant->spun_ns / 1e6);
}

static void a_gang_alone_has_its_share(void)
{
    enum { WARM_S = 2, WATCHED_S = 6 };
    static const unsigned percents[] = {30, 50, 70};
    for (unsigned body = 0; body < 3; body++) {
        double alone = gang_alone(bodies[body]);
        for (unsigned p = 0; p < 3; p++) {
            begin_gangs();
            for (unsigned rank = 0; rank < 2; rank++)
                tenant_start(member(rank, 0, rank, bodies[body], percents[p], 0));
            EXPECT(true, machine_run(WARM_S * SECOND));
            uint64_t before = tenants[0].launched;
            EXPECT(true, machine_run(WATCHED_S * SECOND));
            double got = gang_got(&tenants[0], before, WATCHED_S, alone);
            report(names[body], &tenants[0], got);
            EXPECT_NEAR(percents[p], slacks[body], got);
            machine_end();
        }
    }
}

static void two_gangs_on_the_same_cards_have_half_each(void)
{
    enum { WARM_S = 2, WATCHED_S = 6 };
    for (unsigned body = 0; body < 3; body++) {
        double alone = gang_alone(bodies[body]);
        begin_gangs();
        for (unsigned t = 0; t < 4; t++)
            tenant_start(member(t, t / 2, t % 2, bodies[body], 50, t / 2 * 50));
        EXPECT(true, machine_run(WARM_S * SECOND));
        uint64_t before[2] = {tenants[0].launched, tenants[2].launched};
        EXPECT(true, machine_run(WATCHED_S * SECOND));
        for (unsigned gang = 0; gang < 2; gang++) {
            double got = gang_got(&tenants[2 * gang], before[gang], WATCHED_S, alone);
            report(names[body], &tenants[2 * gang], got);
            EXPECT(true, got >= 46);
        }
        machine_end();
    }
}

static void a_gang_and_programs_of_one_card_have_half_each(void)
{
    enum { WARM_S = 2, WATCHED_S = 6 };
    for (unsigned body = 0; body < 3; body++) {
        double gang_native = gang_alone(bodies[body]), native = alone(&KERNELS) / RUN_S;
        machine_end();
        begin_gangs();
        for (unsigned rank = 0; rank < 2; rank++)
            tenant_start(member(rank, 0, rank, bodies[body], 50, 0));
        for (unsigned single = 2; single < 4; single++) {
            add(single, &KERNELS, 50)->card = single - 2;
            tenant_start(&tenants[single]);
        }
        EXPECT(true, machine_run(WARM_S * SECOND));
        uint64_t before[4];
        for (unsigned t = 0; t < 4; t++)
            before[t] = tenants[t].launched;
        EXPECT(true, machine_run(WATCHED_S * SECOND));
        double got = gang_got(&tenants[0], before[0], WATCHED_S, gang_native);
        report(names[body], &tenants[0], got);
        double singles[2];
        for (unsigned s = 0; s < 2; s++) {
            singles[s] = gang_got(&tenants[2 + s], before[2 + s], WATCHED_S, native);
            printf("beside it: %.2f\n", singles[s]);
        }
        EXPECT(true, got >= 47 && singles[0] >= 47 && singles[1] >= 47);
        machine_end();
    }
}

static const struct test tests[] = {
    TEST(a_gang_alone_has_its_share),
    TEST(two_gangs_on_the_same_cards_have_half_each),
    TEST(a_gang_and_programs_of_one_card_have_half_each),
};

int main(int count, char **arguments)
{
    return run_test(tests, sizeof tests / sizeof *tests, count, arguments);
}
