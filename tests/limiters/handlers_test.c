/* Launches in signal handlers that interrupt launches, in virtual time. */
#include "machine/programs.h"

/* A handler that takes a millisecond meets the end of a time slice soon. */
static const struct tenant INTERRUPTED = {.kernel_ns = 2 * MS, .host_ns = 3 * US, .in_flight = 8, .handler_ns = MS};

/* Its longest stop. */
static uint64_t run_and_watch(const struct tenant *tenant, uint64_t ns)
{
    uint64_t since_ns = machine_now(), longest_ns = 0, launched = tenant->launched;
    for (uint64_t end_ns = machine_now() + ns; machine_now() < end_ns;) {
        EXPECT(true, machine_run(5 * MS));
        if (tenant->launched != launched)
            since_ns = machine_now();
        launched = tenant->launched;
        longest_ns = machine_now() - since_ns > longest_ns ? machine_now() - since_ns : longest_ns;
    }
    return longest_ns;
}

TEST(a_launch_in_a_handler_that_interrupts_a_launch_waits_no_longer_than_others)
{
    begin();
    add(0, &INTERRUPTED, 30);
    tenant_start(&tenants[0]);
    uint64_t longest_ns = run_and_watch(&tenants[0], RUN_S * SECOND);
    printf("%.0f ms at most; %.2f of 30\n", (double)longest_ns / 1e6, tenant_got(&tenants[0], 2, RUN_S));
    EXPECT(true, longest_ns < 500 * MS);
    EXPECT_NEAR(30, 1.5, tenant_got(&tenants[0], 2, RUN_S));
    machine_end();
}

/* All its work is launched from handlers, or interrupted by them. */
TEST(who_launches_in_handlers_has_its_share_and_no_more)
{
    static const unsigned percents[][2] = {{30, 60}, {10, 90}, {60, 30}};
    for (unsigned p = 0; p < 3; p++) {
        begin();
        add(0, &INTERRUPTED, percents[p][0]);
        add(1, &KERNELS, percents[p][1]);
        together(2);
        printf("%.2f of %u beside %.2f of %u\n", tenant_got(&tenants[0], 2, RUN_S), percents[p][0],
               tenant_got(&tenants[1], 2, RUN_S), percents[p][1]);
        EXPECT_NEAR(percents[p][0], 1.5, tenant_got(&tenants[0], 2, RUN_S));
        EXPECT_NEAR(percents[p][1], 1.5, tenant_got(&tenants[1], 2, RUN_S));
        machine_end();
    }
}
