/* Tenants that are killed or stopped beside others, in virtual time. */
#include "machine/programs.h"

/* Three busy tenants, one of which is killed at a random moment, and another comes in its place; whether the one that
 * was killed had the time slice or not, some neighbour that waits for it has it soon. */
static void after_a_kill_the_next_owner_is_there_within_5_ms(unsigned kills)
{
    uint64_t last_ns = 0, sum_ns = 0;
    unsigned owners = 0, seed = 1;
    begin();
    for (unsigned t = 0; t < 3; t++) {
        add(t, t == 1 ? &DECODER : &KERNELS, 33);
        tenant_start(&tenants[t]);
    }
    EXPECT(true, machine_run(100 * MS));
    for (unsigned k = 0; k < kills; k++) {
        EXPECT(true, machine_run((uint64_t)rand_r(&seed) % (30 * MS)));
        unsigned victim = (unsigned)rand_r(&seed) % 3;
        bool is_owner = tenant_runs(&tenants[victim]), waits = false;
        for (unsigned t = 0; t < 3; t++)
            waits = waits || (t != victim && tenant_waits(&tenants[t]));
        tenant_kill(&tenants[victim]);
        uint64_t since_ns = machine_now();
        bool next = !waits;
        while (!next && machine_now() - since_ns <= 5 * MS) {
            EXPECT(true, machine_run(20 * US));
            for (unsigned t = 0; t < 3; t++)
                next = next || tenant_runs(&tenants[t]);
        }
        uint64_t took_ns = machine_now() - since_ns;
        if (is_owner && waits) {
            owners++;
            sum_ns += took_ns;
            last_ns = took_ns > last_ns ? took_ns : last_ns;
        }
        EXPECT(true, took_ns <= 5 * MS);
        tenant_start(&tenants[victim]);
    }
    printf("%u kills, %u of them of whoever had the time slice while another waited: the next owner after %.3f ms on "
           "average, %.3f ms at most\n",
           kills, owners, (double)sum_ns / 1e6 / owners, (double)last_ns / 1e6);
    EXPECT(true, owners > kills / 10);
    for (unsigned t = 0; t < 3; t++)
        tenants[t].launched = 0;
    EXPECT(true, machine_run(3000 * MS));
    for (unsigned t = 0; t < 3; t++)
        EXPECT(true, tenants[t].launched > 0);
    machine_end();
}

TEST(a_killed_tenant_is_followed_by_the_next_within_5_ms)
{
    after_a_kill_the_next_owner_is_there_within_5_ms(2000);
}

TEST(a_hundred_thousand_killed_tenants_are_each_followed_within_5_ms)
{
    after_a_kill_the_next_owner_is_there_within_5_ms(100000);
}

/* SIGSTOP, a debugger, a paused container: at whatever point of its time slice. */
TEST(a_tenant_stopped_in_its_slice_is_waited_for_once_and_has_its_share_again)
{
    for (unsigned moment = 0; moment < 12; moment++) {
        machine_begin(1);
        add(0, &KERNELS, 50)->terms.priority = moment % 4 == 0 ? HETERO_PRIORITY_HIGH : HETERO_PRIORITY_LOW;
        add(1, &KERNELS, 50);
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(800 * MS));
        for (uint64_t ran_ns = 0; ran_ns <= moment * 400 * US; ran_ns = tenant_runs(&tenants[0]) ? ran_ns + 20 * US : 0)
            EXPECT(true, machine_run(20 * US));
        tenant_stop(&tenants[0]); /* at about two seconds */
        EXPECT(true, machine_run(20 * SECOND));
        EXPECT_NEAR(0, 0, tenant_got(&tenants[0], 4, 20));
        EXPECT_NEAR(50, 2, tenant_got(&tenants[1], 4, 20));
        tenant_continue(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        EXPECT_NEAR(50, 1.5, tenant_got(&tenants[0], 24, 29));
        EXPECT_NEAR(50, 2.5, tenant_got(&tenants[1], 24, 29));
        machine_end();
    }
}

/* It keeps the lock that says so. */
TEST(a_tenant_stopped_while_it_waits_holds_nobody_up_for_long)
{
    static const uint32_t priorities[] = {HETERO_PRIORITY_LOW, HETERO_PRIORITY_HIGH};
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(1);
        add(0, &KERNELS, 10)->terms.priority = priorities[p];
        add(1, &KERNELS, 90)->terms.priority = priorities[p];
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(800 * MS));
        while (!tenant_waits(&tenants[0]))
            EXPECT(true, machine_run(20 * US));
        tenant_stop(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        printf("%.2f of 90\n", tenant_got(&tenants[1], 4, 9));
        EXPECT_NEAR(90, 4, tenant_got(&tenants[1], 4, 9));
        machine_end();
    }
}

/* In a signal handler, or a debugger: its governor goes on. */
TEST(a_launcher_kept_at_the_gate_costs_its_neighbour_nothing)
{
    static const uint32_t policies[] = {HETERO_POLICY_FIXED, HETERO_POLICY_ELASTIC};
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(1);
        add(0, &KERNELS, 20)->terms.policy = policies[p];
        add(1, &KERNELS, 80);
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(800 * MS));
        while (tenant_runs(&tenants[0]) || atomic_load(&tenants[0].governor->gate.queue.waiting_count) == 0)
            EXPECT(true, machine_run(20 * US));
        tenant_stop_launchers(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        uint64_t before = tenants[0].time_slices;
        EXPECT(true, machine_run(SECOND));
        printf("%.2f of 80\n", tenant_got(&tenants[1], 3, 10));
        EXPECT_NEAR(80, 0.5, tenant_got(&tenants[1], 3, 10));
        EXPECT(before, tenants[0].time_slices);
        tenant_continue(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        EXPECT_NEAR(20, 1.5, tenant_got(&tenants[0], 12, 18));
        machine_end();
    }
}

/* One after the other, as a program that reads each result. */
static struct tenant *add_long(unsigned number, unsigned percent)
{
    return add(number, &(struct tenant){.kernel_ns = 400 * MS, .host_ns = 20 * US, .in_flight = 1}, percent);
}

/* Its kernels go on meanwhile; whether one is done when it goes on nobody saw. */
static void stop_again_and_again(unsigned stopped_ms, unsigned runs_ms)
{
    while (machine_now() < 60 * SECOND) {
        EXPECT(true, machine_run(runs_ms * MS));
        tenant_stop(&tenants[0]);
        EXPECT(true, machine_run(stopped_ms * MS));
        tenant_continue(&tenants[0]);
    }
}

TEST(a_tenant_stopped_again_and_again_while_its_kernels_run_costs_its_neighbour_nothing)
{
    static const unsigned stops_ms[][2] = {{150, 20}, {450, 5}, {850, 10}, {1000, 30}};
    for (unsigned s = 0; s < 4; s++) {
        begin();
        tenant_start(add_long(0, 30));
        tenant_start(add(1, &KERNELS, 60));
        stop_again_and_again(stops_ms[s][0], stops_ms[s][1]);
        double got = tenant_got(&tenants[0], 3, 60), others = tenant_got(&tenants[1], 3, 60);
        printf("stopped for %u of %u ms: %.2f of 30, beside %.2f of 60\n", stops_ms[s][0],
               stops_ms[s][0] + stops_ms[s][1], got, others);
        EXPECT(true, got <= 33);
        EXPECT(true, others >= 59);
        machine_end();
    }
}

/* It launches the next one a while after it went on, when the device has been idle. */
TEST(a_tenant_stopped_while_each_of_its_kernels_runs_gets_no_more_than_its_share)
{
    for (uint64_t rest_ns = 0; rest_ns <= 20 * MS; rest_ns += 5 * MS) {
        begin();
        struct tenant *tenant = add_long(0, 30);
        tenant->batch = 1;
        tenant->rest_ns = rest_ns;
        tenant_start(tenant);
        stop_again_and_again(450, 25);
        printf("%.2f of 30\n", tenant_got(tenant, 3, 60));
        EXPECT(true, tenant_got(tenant, 3, 60) <= 31);
        machine_end();
    }
}

/* Behind its time slice, while its kernel still runs: nobody sees when that is done, and it is charged for a second. */
TEST(a_tenant_stopped_for_long_behind_its_time_slice_does_not_pay_for_all_of_the_stop)
{
    begin();
    struct tenant *tenant = add_long(0, 30);
    tenant_start(tenant);
    EXPECT(true, machine_run(2 * SECOND));
    while (tenant_runs(tenant) || tenant->governor->trail.charged_until_at_ns == 0)
        EXPECT(true, machine_run(MS));
    tenant_stop(tenant);
    EXPECT(true, machine_run(20 * SECOND));
    tenant_continue(tenant);
    uint64_t launched = tenant->launched, since_ns = machine_now();
    while (tenant->launched == launched && machine_now() - since_ns < 60 * SECOND)
        EXPECT(true, machine_run(MS));
    printf("the next launch %.2f s after\n", (double)(machine_now() - since_ns) / (double)SECOND);
    EXPECT(true, machine_now() - since_ns < 5 * SECOND);
    machine_end();
}

/* Its page still says that it works. */
TEST(a_tenant_killed_while_its_kernels_run_lowers_nobodys_charge)
{
    begin();
    add_long(0, 30);
    tenant_start(add(1, &KERNELS, 60));
    while (machine_now() < 40 * SECOND) {
        tenant_start(&tenants[0]);
        while (tenants[0].done_ns == 0)
            EXPECT(true, machine_run(50 * MS));
        tenant_kill(&tenants[0]);
        EXPECT(true, machine_run(900 * MS));
    }
    printf("%.2f of 60\n", tenant_got(&tenants[1], 3, 40));
    EXPECT_NEAR(60, 2, tenant_got(&tenants[1], 3, 40)); /* it is believed for 20 ms more */
    machine_end();
}
