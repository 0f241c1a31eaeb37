/* Tenants of high priority beside others, in virtual time. */
#include "machine/programs.h"

/* In milliseconds, the mean. */
static double request_of(const struct tenant *tenant)
{
    return (double)tenant->batches_ns / (double)tenant->batches / (double)MS;
}

TEST(a_request_of_high_priority_waits_for_what_is_in_flight_and_no_longer)
{
    begin();
    double native = alone(&TRAINING);
    alone(&LOOP);
    const struct tenant *unshared = &tenants[TENANTS - 1];
    double request_ms = request_of(unshared), longest_ms = (double)unshared->longest_ns / (double)MS;
    add(0, &LOOP, 50)->terms.priority = HETERO_PRIORITY_HIGH;
    add(1, &TRAINING, 50);
    tenants[0].terms.policy = tenants[1].terms.policy = HETERO_POLICY_ELASTIC;
    together(2);
    double left = 1 - (double)tenants[0].batches_ns / (RUN_S * (double)SECOND);
    double low = (double)tenants[1].launched / native / left;
    printf("request %.3f ms, alone %.3f; longest %.3f, alone %.3f; the other got %.1f %% of what was left\n",
           request_of(&tenants[0]), request_ms, (double)tenants[0].longest_ns / (double)MS, longest_ms, 100 * low);
    EXPECT(true, request_of(&tenants[0]) <= request_ms + 0.5);
    EXPECT(true, (double)tenants[0].longest_ns / (double)MS <= longest_ms + 1);
    EXPECT(true, low >= 0.9);
    machine_end();
}

/* Requests of five milliseconds beside training. The latest takes as much longer than alone as the longest kernel of
 * that, and 0.6 ms for turns that the driver gave meanwhile and 0.15 for clocks and looks that are late; training has
 * nine tenths of what is left. */
static void expect_requests_beside(const struct tenant *training, double longest_kernel_ms)
{
    const struct tenant requests = {
        .kernel_ns = 200 * US, .host_ns = 5 * US, .batch = 25, .in_flight = 1000, .rest_ns = 20 * MS};
    begin();
    double native = alone(training);
    alone(&requests);
    double longest_ms = (double)tenants[TENANTS - 1].longest_ns / (double)MS;
    add(0, &requests, 50)->terms.priority = HETERO_PRIORITY_HIGH;
    add(1, training, 50)->terms.policy = HETERO_POLICY_ELASTIC;
    for (unsigned t = 0; t < 2; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(SECOND)); /* until then requests of that kind are news */
    tenants[0].longest_ns = 0;
    EXPECT(true, machine_run((RUN_S - 1) * SECOND));
    double left = 1 - (double)tenants[0].batches * 5 / (RUN_S * 1000.0);
    double low = (double)tenants[1].launched / native / left;
    double beside_ms = (double)tenants[0].longest_ns / (double)MS;
    printf("longest %.3f ms, alone %.3f; training got %.1f %% of what was left\n", beside_ms, longest_ms, 100 * low);
    EXPECT(true, beside_ms <= longest_ms + longest_kernel_ms + 0.75);
    EXPECT(true, low >= 0.9);
    machine_end();
}

TEST(a_request_beside_training_waits_for_the_longest_kernel_and_little_more)
{
    static const uint16_t pattern_us[] = {50, 200, 20, 1000, 100, 300};
    const struct tenant training = {
        .pattern_us = pattern_us, .pattern = 6, .kernel_ns = 300 * US, .host_ns = 5 * US, .in_flight = 1000};
    expect_requests_beside(&training, 1);
}

/* As a transformer for images, which needs two thirds of the card: what its thread waits for is never made good. */
TEST(training_whose_thread_is_hardly_faster_than_the_card_has_nine_tenths_of_what_requests_leave)
{
    static const uint16_t pattern_us[] = {8, 40, 10, 120, 9, 30, 60, 12, 200, 15, 25, 90};
    const struct tenant training = {.pattern_us = pattern_us,
                                    .pattern = 12,
                                    .kernel_ns = 50 * US,
                                    .host_ns = 80 * US,
                                    .batch = 600,
                                    .in_flight = 1000};
    expect_requests_beside(&training, 0.2);
}

TEST(shares_beside_high_priority_are_shares)
{
    static const unsigned percents[][2] = {{60, 30}, {50, 50}, {90, 10}, {10, 90}};
    for (unsigned p = 0; p < 4; p++) {
        double native = alone(&KERNELS), natives = alone(&GRAPHS);
        add(0, &KERNELS, percents[p][0])->terms.priority = HETERO_PRIORITY_HIGH;
        add(1, &GRAPHS, percents[p][1]);
        together(2);
        /* Where they add up to 100, what hand-overs take is somebody's loss. */
        expect_of(0, percents[p][0], 2.5, 3, native);
        expect_of(1, percents[p][1], 2, 3, natives);
        machine_end();
    }
}
