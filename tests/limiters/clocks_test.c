/* Programs that lower the clocks of the card, and those beside them, in virtual time. */
#include "machine/programs.h"

/* Products, which want more than the card may draw: without a share they run at lowered clocks. */
static const struct tenant PRODUCTS = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8, .draws_mw = 830000};
/* For which the card draws little. */
static const struct tenant LITTLE = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8, .draws_mw = 60000};
#define AVAILABLE_MW (LIMIT_MW * 0.98 - IDLE_MW)

TEST(a_power_limited_program_beside_an_unconstrained_one_gets_its_share_of_its_speed_alone)
{
    begin();
    double native = alone(&PRODUCTS) / power_slowdown(power_model_of("NVIDIA H200"), PRODUCTS.draws_mw, AVAILABLE_MW),
           natives = alone(&LITTLE);
    add(0, &PRODUCTS, 30);
    add(1, &LITTLE, 60);
    together(2);
    expect_of(0, 30, 0.7, 3, native);
    expect_of(1, 60, 0.7, 3, natives);
    machine_end();
}

TEST(a_program_as_fast_as_the_clock_has_its_share_beside_one_that_lowers_it)
{
    static const struct tenant LATE = {.kernel_ns = 500 * US,
                                       .host_ns = 3 * US,
                                       .in_flight = 8,
                                       .draws_mw = 830000,
                                       .clock = 910,
                                       .from_ns = 5 * SECOND};
    begin();
    add(0, &LITTLE, 60);
    tenants[0].clocked = true;
    add(1, &LATE, 30);
    for (unsigned t = 0; t < 2; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(8 * SECOND));
    uint64_t before = tenants[0].launched;
    EXPECT(true, machine_run(10 * SECOND));
    double got = 100 * (double)(tenants[0].launched - before) * (double)LITTLE.kernel_ns / (10 * (double)SECOND);
    printf("%.2f of 60, at a clock of %.2f\n", got, LATE.clock / 1024.0);
    EXPECT_NEAR(60, 1, got);
    machine_end();
}

TEST(slices_at_another_clock_do_not_make_pauses_look_dear)
{
    begin();
    struct tenant *products = add(0, &PRODUCTS, 50);
    products->kernel_ns = 830 * US;
    products->draws_mw = 570000;
    add(1, &GRAPHS, 50);
    together(2);
    tenant_kill(&tenants[1]); /* who drew so much that the clocks were low */
    products->kernel_ns = 690 * US;
    products->draws_mw = 830000;
    EXPECT(true, machine_run(SECOND));
    printf("a pause is taken to cost %.2f ms\n", products->governor->pace.lost_ms);
    EXPECT_NEAR(0, 0.5, products->governor->pace.lost_ms);
    machine_end();
}

/* How long two programs take that work for 250 ms of the card and rest for two seconds. */
static void work_and_rest(uint32_t draws_mw, double took_ms[2])
{
    static const struct tenant BURSTS = {
        .kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8, .batch = 500, .rest_ns = 2000 * MS};
    machine_begin(1);
    for (unsigned t = 0; t < 2; t++) {
        struct tenant *tenant = add(t, &BURSTS, 50);
        tenant->draws_mw = draws_mw;
        tenant->from_ns = t * 20 * MS;
        tenant_start(tenant);
    }
    EXPECT(true, machine_run(50 * SECOND));
    for (unsigned t = 0; t < 2; t++)
        took_ms[t] = (double)tenants[t].batches_ns / 1e6 / (double)tenants[t].batches;
    machine_end();
}

TEST(what_the_card_drew_while_both_rested_is_charged_to_none)
{
    begin();
    double expected_ms[2], took_ms[2];
    work_and_rest(0, expected_ms);
    work_and_rest(470000, took_ms);
    for (unsigned t = 0; t < 2; t++) {
        printf("%.1f ms of work, %.1f where nothing tells its power\n", took_ms[t], expected_ms[t]);
        EXPECT_NEAR(expected_ms[t], expected_ms[t] * 0.02, took_ms[t]);
    }
}
