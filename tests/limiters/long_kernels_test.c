/* Kernels of any length, in virtual time. */
#include "machine/programs.h"

/* One after the other, as a program that reads each result. */
static struct tenant *add_long(unsigned number, uint64_t kernel_ns, unsigned percent, unsigned in_flight)
{
    const struct tenant like = {.kernel_ns = kernel_ns, .host_ns = 20 * US, .in_flight = in_flight};
    return add(number, &like, percent);
}

/* Once it is known that they are long, one is in flight at a time. */
static void run_until_launched(const struct tenant *tenant, uint64_t launches)
{
    while (tenant->launched < launches) {
        EXPECT(true, machine_run(US * 500));
        EXPECT(true, tenant->kernel_ns < 50 * MS || tenant->asked_ns - tenant->done_ns < 2 * tenant->kernel_ns);
    }
}

/* From the first launch to the start of the one after the last. */
TEST(alone_kernels_of_any_length_get_their_share)
{
    static const uint64_t lengths_ms[] = {5, 50, 200, 400, 1000, 5000, 20000};
    for (unsigned l = 0; l < sizeof lengths_ms / sizeof *lengths_ms; l++)
        for (unsigned in_flight = 1; in_flight <= 8; in_flight += 7) {
            uint64_t count = lengths_ms[l] < 100 ? 4000 / lengths_ms[l] : lengths_ms[l] < 10000 ? 12 : 3;
            begin();
            struct tenant *tenant = add_long(0, lengths_ms[l] * MS, 30, in_flight);
            tenant_start(tenant);
            run_until_launched(tenant, count + 1);
            double ms = (double)(machine_now() - tenant->first_ns) / (double)MS;
            double got = 100.0 * (double)(count * lengths_ms[l]) / ms;
            printf("%lu ms, %u in flight: %.2f of 30\n", (unsigned long)lengths_ms[l], in_flight, got);
            EXPECT_NEAR(30, 1, got);
            machine_end();
        }
}

TEST(a_tenth_of_kernels_of_two_seconds_costs_its_neighbour_nothing_for_long)
{
    static const unsigned in_flight[] = {1, 8};
    for (unsigned i = 0; i < 2; i++) {
        begin();
        add_long(0, 2000 * MS, 10, in_flight[i]);
        add(1, &KERNELS, 60);
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(60 * SECOND));
        uint64_t since = tenants[1].done_ns, early = tenants[0].launched;
        EXPECT(true, machine_run(60 * SECOND));
        double got = (double)tenants[1].done_ns / (120.0 * SECOND) * 100;
        printf("%lu kernels in 120 s (%lu in the first half), beside %.2f of 60 (%.2f in the second half)\n",
               (unsigned long)tenants[0].launched, (unsigned long)early, got,
               (double)(tenants[1].done_ns - since) / (60.0 * SECOND) * 100);
        EXPECT(true, tenants[0].launched <= 120 * 0.1 / 2 + 1);
        EXPECT_NEAR(60, 1, got);
        machine_end();
    }
}

TEST(two_with_kernels_of_seconds_have_their_shares)
{
    begin();
    add_long(0, 1500 * MS, 30, 4);
    add_long(1, 700 * MS, 60, 4);
    tenant_start(&tenants[0]);
    tenant_start(&tenants[1]);
    for (unsigned part = 0; part < 5; part++)
        EXPECT(true, machine_run(40 * SECOND));
    double got[2];
    for (unsigned t = 0; t < 2; t++)
        got[t] = (double)tenants[t].done_ns / (200.0 * SECOND) * 100;
    printf("%.2f of 30, %.2f of 60\n", got[0], got[1]);
    EXPECT_NEAR(30, 1, got[0]);
    EXPECT_NEAR(60, 1, got[1]);
    machine_end();
}

/* Lent time cannot be taken back from a kernel; what its neighbour loses by that it gets later. */
TEST(kernels_of_any_length_on_lent_time_cost_their_neighbour_nothing)
{
    static const uint64_t lengths_ms[] = {1, 10, 50, 150, 500, 2000};
    for (unsigned l = 0; l < sizeof lengths_ms / sizeof *lengths_ms; l++) {
        begin();
        add_long(0, lengths_ms[l] * MS, 10, 1)->terms.policy = HETERO_POLICY_ELASTIC;
        add(1, &KERNELS, 60);
        tenants[1].from_ns = 10 * SECOND;
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(9 * SECOND));
        EXPECT(true, tenant_got(&tenants[0], 2, 9) > 95);
        EXPECT(true, machine_run(51 * SECOND));
        double lent = tenant_got(&tenants[0], 10, 60), got = tenant_got(&tenants[1], 10, 60);
        printf("%lu ms: %.2f of 60 from its first second on, beside %.2f of 10 and what is lent\n",
               (unsigned long)lengths_ms[l], got, lent);
        EXPECT_NEAR(60, 1, got);
        EXPECT(true, lent > 30);
        machine_end();
    }
}

/* More than a second's worth, which fades: it is owed in full. */
TEST(what_a_kernel_of_twelve_seconds_took_from_its_neighbour_is_given_back)
{
    begin();
    add_long(0, 12000 * MS, 10, 1);
    add(1, &KERNELS, 60)->from_ns = 2 * SECOND;
    tenant_start(&tenants[0]);
    tenant_start(&tenants[1]);
    EXPECT(true, machine_run(25 * SECOND));
    double owed = tenant_got(&tenants[1], 2, 24);
    EXPECT(true, machine_run(35 * SECOND));
    printf("%.2f of 60 while it ran, %.2f in a minute\n", owed, tenant_got(&tenants[1], 2, 60));
    EXPECT(true, owed < 50);
    EXPECT_NEAR(60, 1, tenant_got(&tenants[1], 2, 60));
    machine_end();
}

/* The neighbour comes when the kernel runs already, and is charged for all of the card once the other's page is
 * believed no longer: that it was true shows when the kernel has ended. */
TEST(what_one_long_kernel_took_is_owed_in_full_up_to_half_a_minute)
{
    static const struct {
        uint64_t kernel_s;
        unsigned for_s;
    } kernels[] = {{20, 90}, {48, 230}};
    for (unsigned k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        begin();
        add_long(0, kernels[k].kernel_s * SECOND, 10, 1)->rest_ns = 3600 * SECOND;
        tenants[0].batch = 1;
        add(1, &KERNELS, 75)->from_ns = 2 * SECOND;
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        double lacks = 0, most = 0;
        for (unsigned s = 1; s <= kernels[k].for_s; s++) {
            EXPECT(true, machine_run(SECOND));
            lacks = 0.75 * (s - 2.0) - (double)tenants[1].done_ns / SECOND;
            most = lacks > most ? lacks : most;
        }
        printf("%lu s: it lacked %.2f s at most, and %.2f s at the end\n", (unsigned long)kernels[k].kernel_s, most,
               lacks);
        EXPECT(true, most > 10);
        EXPECT_NEAR(0, 3, lacks);
        machine_end();
    }
}

/* Each next kernel might be what the one before waits for, so it is let through in debt: after 30 s, 4 minutes, 32. */
TEST(kernels_of_most_of_a_minute_in_a_row_start_ever_more_seldom)
{
    begin();
    tenant_start(add_long(0, 48000 * MS, 10, 100));
    for (unsigned part = 0; part < 20; part++)
        EXPECT(true, machine_run(50 * SECOND));
    printf("%lu kernels of 48 s in 1000 s\n", (unsigned long)tenants[0].launched);
    EXPECT(true, tenants[0].launched <= 4); /* without its debt three */
    machine_end();
    begin();
    tenant_start(add_long(0, 48000 * MS, 10, 100));
    tenant_start(add(1, &KERNELS, 75));
    EXPECT(true, machine_run(245 * SECOND));
    double got = (double)tenants[0].done_ns / (2.45 * SECOND), others = (double)tenants[1].done_ns / (2.45 * SECOND);
    printf("%.1f of 10 in four minutes, beside %.1f of 75\n", got, others);
    EXPECT(true, got < 42 && others > 52); /* one kernel is 20 */
    machine_end();
}

/* Its debt keeps the launch back, and grows while the kernel runs. */
TEST(a_kernel_that_waits_for_a_launch_of_its_own_grant_gets_it_in_half_a_minute)
{
    begin();
    add_long(0, MS, 10, UINT32_MAX)->waits = true;
    add(1, &KERNELS, 60);
    tenant_start(&tenants[0]);
    tenant_start(&tenants[1]);
    EXPECT(true, machine_run(29 * SECOND));
    EXPECT(1, tenants[0].launched);
    EXPECT(true, machine_run(3 * SECOND));
    EXPECT(true, tenants[0].launched > 1);
    machine_end();
}

/* Two of high priority: one has waited for the other's kernels in vain, runs without a time slice and does not say that
 * it wants one. The device is not lent to a third meanwhile. */
TEST(beside_one_that_waits_no_more_nothing_is_lent)
{
    begin();
    add_long(0, 250 * MS, 60, 6)->terms.policy = HETERO_POLICY_ELASTIC;
    add_long(1, 4 * MS, 14, 4);
    tenants[0].terms.priority = tenants[1].terms.priority = HETERO_PRIORITY_HIGH;
    add_long(2, 250 * MS, 9, 2)->terms.policy = HETERO_POLICY_ELASTIC;
    for (unsigned t = 0; t < 3; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(40 * SECOND));
    double got[3];
    for (unsigned t = 0; t < 3; t++)
        got[t] = tenant_got(&tenants[t], 2, 40);
    printf("%.2f of 60 and what is lent, %.2f of 14, %.2f of 9\n", got[0], got[1], got[2]);
    EXPECT(true, got[0] >= 59);
    EXPECT_NEAR(14, 1, got[1]);
    EXPECT(true, got[2] >= 8);
    machine_end();
}

/* An elastic one whose kernels, one at a time, wait for the driver's turns of a long one: if it took them for long ones
 * itself it would launch late, get less than half of the clock, and the other far more than it is charged for. */
TEST(beside_a_long_kernel_those_of_a_millisecond_are_not_taken_for_long_ones)
{
    begin();
    machine_age_clocks(0); /* these moments are known to meet */
    add_long(0, 250 * MS, 63, 5);
    add_long(1, MS, 23, 1)->terms.policy = HETERO_POLICY_ELASTIC;
    add_long(2, 60 * MS, 1, 4)->terms.policy = HETERO_POLICY_ELASTIC;
    add_long(3, 250 * MS, 2, 6);
    for (unsigned t = 0; t < 4; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(41 * SECOND));
    printf("%.2f of 63, %.2f of 23 and what is lent\n", tenant_got(&tenants[0], 2, 41), tenant_got(&tenants[1], 2, 41));
    EXPECT_NEAR(63, 1.5, tenant_got(&tenants[0], 2, 41));
    EXPECT(true, tenant_got(&tenants[1], 2, 41) >= 26);
    machine_end();
}

/* Of low priority beside high: one kernel of it in flight at a time would get little of each turn that the driver gives
 * it beside the long kernel, and be charged for a part of the clock. */
TEST(short_kernels_beside_high_priority_and_a_long_kernel_get_their_share)
{
    begin();
    add_long(0, 500 * US, 50, 8)->terms.policy = HETERO_POLICY_ELASTIC;
    add_long(1, 50 * MS, 20, 4);
    add_long(2, 200 * US, 20, 8)->terms.policy = HETERO_POLICY_ELASTIC;
    add_long(3, 4 * MS, 5, 4)->terms.policy = HETERO_POLICY_ELASTIC;
    tenants[0].terms.priority = tenants[3].terms.priority = HETERO_PRIORITY_HIGH;
    for (unsigned t = 0; t < 4; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(40 * SECOND));
    static const double shares[] = {50, 20, 20, 5};
    for (unsigned t = 0; t < 4; t++) {
        printf("%.2f of %.0f\n", tenant_got(&tenants[t], 2, 40), shares[t]);
        EXPECT_NEAR(shares[t], 2, tenant_got(&tenants[t], 2, 40));
    }
    machine_end();
}
