/* Programs that a pause costs something, in virtual time. */
#include "machine/programs.h"

/* One that reads each token of 5.2 ms, and one of 1.1 ms, whose first launches after a pause are slow; training, whose
 * kernels are of all lengths. */
static const uint16_t LAYER_US[] = {5, 5, 280, 5, 8, 8, 8, 560, 5, 100, 5, 5, 5, 190, 10, 190};
static const struct tenant COLD_DECODER = {.kernel_ns = 87 * US,
                                           .pattern_us = LAYER_US,
                                           .pattern = 16,
                                           .host_ns = 20 * US,
                                           .batch = 64,
                                           .in_flight = 1000,
                                           .warmup_ns = 600 * US};
static const struct tenant COLD_LOOP = {
    .kernel_ns = 12 * US, .host_ns = 17 * US, .batch = 60, .in_flight = 1000, .warmup_ns = 500 * US};
static const uint16_t MIXED_US[] = {[0 ... 24] = 1000, [25 ... 249] = 100};
static const struct tenant MIXED = {
    .kernel_ns = 190 * US, .pattern_us = MIXED_US, .pattern = 250, .host_ns = 5 * US, .in_flight = 1000};

TEST(what_a_pause_costs_a_program_is_made_good)
{
    static const struct tenant *const programs[] = {&COLD_DECODER, &COLD_LOOP};
    for (unsigned p = 0; p < 2; p++)
        for (unsigned percent = 30; percent <= 60; percent += 30)
            for (unsigned others = 0; others < 2; others++) {
                machine_begin(1);
                double native = alone(programs[p]);
                add(0, programs[p], percent);
                add(1, &GRAPHS, 90 - percent);
                together(1 + others);
                double need = native * (double)programs[p]->kernel_ns / (RUN_S * (double)SECOND);
                bool below = others == 0 && need < 0.85; /* then a share is of what it needs */
                if (others == 0) {
                    expect_of(0, below ? percent / need : percent, 1, 3, native);
                } else { /* what it leaves idle while nobody wants the device is not charged */
                    double got = 100 * (double)tenants[0].launched / native,
                           neighbour = tenant_got(&tenants[1], 2, RUN_S);
                    printf("%.2f of %u, its neighbour %.2f of %u\n", got, percent, neighbour, 90 - percent);
                    EXPECT(true, got > percent - 1 && got < percent + 1.5 && neighbour > 90 - percent - 1);
                }
                machine_end();
            }
}

TEST(what_a_pause_costs_is_lost_to_all_alike)
{
    pair(&COLD_DECODER, 50, &GRAPHS, 50, 1.5);
}

TEST(a_program_whose_launches_are_of_all_sizes_is_given_nothing)
{
    for (unsigned percent = 30; percent <= 60; percent += 30) {
        machine_begin(1);
        add(0, &MIXED, percent);
        together(1);
        EXPECT_NEAR(percent, 0.5, tenant_got(&tenants[0], 2, RUN_S));
        machine_end();
    }
}
