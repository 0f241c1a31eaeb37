/* The charge rate of a card at its power limit, and what a pause costs, from readings and time slices. */
#include "machine/check.h"
#include "machine/h200.h"

#include "../../limiters/timeshare/engine.h"
#include "../../limiters/timeshare/pace.h"
#include "../../limiters/timeshare/power.h"

static const struct power_model *model;
static unsigned stamped_late_ms = 4;
static double usual_rate, late_rate; /* launches a millisecond, in the first half of the looks and in the second */
static unsigned power_looks = 20,
                unwatched_ms; /* before the last look but one, the neighbour runs and nobody watches it */
static uint64_t set_back_ns;  /* by so much the clock of the samples is set back after the first look */

/* Two tenants in time slices of changing length, one of which draws `own_mw` above idle, and what the charge rate of
 * its time is after some looks at samples as an H200 takes them: every 20 ms, through a filter, stamped some ms late
 * and more. */
static double charge_rate_beside(double own_share, uint32_t own_mw, double others_share, uint32_t others_mw,
                                 bool samples, uint32_t clock)
{
    struct power power;
    struct power_reading reading = {.mean_mw = IDLE_MW, .limit_mw = LIMIT_MW, .clock_units = clock};
    double shares[] = {own_share, others_share, 1 - own_share - others_share};
    uint64_t ms = 1000000, ends = ms;
    int whose = 2;
    double filtered = 0, mean = 0;
    power_begin(&power, model, ms * MS, &reading);
    for (unsigned look = 0; look < power_looks; look++) {
        unsigned unwatched = look == power_looks - 2 ? unwatched_ms : 0;
        reading.sample_count = 0;
        reading.clock_units = look < 10 ? 1024 : clock;
        for (unsigned i = 0; i < 250 + unwatched; i++, ms++) {
            while (ms == ends) { /* ours, theirs, and whatever is left is nobody's */
                whose = (whose + 1) % 3;
                ends += (uint64_t)(shares[whose] * 20 * (0.5 + (double)(rand() % 1000) / 1000) + 0.5);
            }
            if (i < unwatched) {
                whose = 1;
                power_unwatched(&power, ms * MS);
            } else if (whose < 2) {
                power_ran(&power, ms * MS, (ms + 1) * MS, whose == 0);
            }
            double drawn = whose == 0 ? own_mw : whose == 1 ? others_mw : 0;
            mean += (drawn - mean) / 1000;
            uint64_t more_ns = ms % 20 == 7 && rand() % 4 == 0 ? 9 * MS : 0;
            h200_meter(&reading, &filtered, drawn, ms, stamped_late_ms * MS + more_ns + 300 * US);
        }
        for (unsigned i = 0; look == 0 && i < reading.sample_count; i++)
            reading.samples[i].at_ns += set_back_ns;
        reading.mean_mw = IDLE_MW + (uint32_t)mean;
        reading.sample_count *= samples;
        power_look(&power, ms * MS, &reading, look < 10 ? usual_rate : late_rate);
    }
    return power.charge_rate / 1024.0;
}

TEST(time_on_a_card_at_its_power_limit_is_charged_more)
{
    model = power_model_of("NVIDIA H200");
    /* Large products at 30 % of the time reach 36 % of the speed they have alone (one H200), whoever is beside. */
    EXPECT_NEAR(36.0 / 30, 0.02, charge_rate_beside(0.3, 848000, 0, 0, true, 1024));
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.3, 848000, 0, 0, false, 1024)); /* a mean that is late */
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.5, 848000, 0.4, 180000, true, 1024));
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.3, 848000, 0.6, 365000, true, 1024));
    for (stamped_late_ms = 0; stamped_late_ms <= 16; stamped_late_ms += 4)
        EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.45, 848000, 0.5, 20000, true, 1024));
    stamped_late_ms = 4;
    /* A unconstrained program is charged at unity, whoever is beside. */
    EXPECT_NEAR(1, 0, charge_rate_beside(0.3, 365000, 0, 0, true, 1024));
    EXPECT_NEAR(1, 0, charge_rate_beside(0.4, 180000, 0.5, 848000, true, 1024));
    EXPECT_NEAR(1, 0, charge_rate_beside(0.3, 365000, 0.6, 848000, true, 1024));
    /* Nor for what its neighbour's power limit does to its speed: as its launches tell, down to the 1.5th power of the
     * clock or, as here, to the clock at which it would draw all there is itself. */
    EXPECT_NEAR(0.95, 0.01, charge_rate_beside(0.3, 365000, 0.6, 848000, true, 924));
    static const double rates[][2] = {{10, 1}, {9.2, 0.92}, {5, 0.864}, {20, 1}};
    for (unsigned r = 0; r < 4; r++) {
        usual_rate = 10;
        late_rate = rates[r][0];
        EXPECT_NEAR(rates[r][1], 0.015, charge_rate_beside(0.3, 365000, 0.6, 848000, true, 924));
    }
    usual_rate = late_rate = 0;
    /* Two that reach the limit together would do so alone, at the same clocks. */
    for (uint32_t clock = 700; clock < 1024; clock += 100)
        EXPECT_NEAR(1, 0.035, charge_rate_beside(0.5, 560000, 0.5, 570000, true, clock));
    /* What a neighbour drew while nobody watched is not taken for ours. */
    power_looks = 2;
    for (unwatched_ms = 0; unwatched_ms <= 2000; unwatched_ms += 500) {
        EXPECT_NEAR(1, 0.01, charge_rate_beside(0.5, 365000, 0.4, 848000, true, 1024));
        EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.5, 848000, 0.4, 100000, true, 1024));
    }
    power_looks = 20;
    unwatched_ms = 0;
    /* Without samples nobody can tell, and both are charged for the mean. */
    double blended = charge_rate_beside(0.3, 365000, 0.6, 848000, false, 1024);
    EXPECT(true, blended > 1.02 && blended < 1.15);
    set_back_ns = 3600 * 1000 * MS; /* what comes afterwards counts all the same */
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.3, 848000, 0.6, 365000, true, 1024));
    set_back_ns = 0;
}

/* Large products at 30 % of the time reach so much of the speed they have alone; on a card of no known model, 30 %. */
TEST(each_card_model_has_its_own_slowdown_and_a_neutral_card_none)
{
    const struct power_model *h200 = power_model_of("NVIDIA H200"), *h100 = power_model_of("NVIDIA H100 80GB HBM3");
    EXPECT_NEAR(1.080, 0.001, power_slowdown(h200, 1.23, 1));
    EXPECT_NEAR(1.182, 0.001, power_slowdown(h200, 1.47, 1));
    EXPECT_NEAR(1.142, 0.001, power_slowdown(h100, 1.47, 1));
    EXPECT_NEAR(1, 0, power_slowdown(&power_model_neutral, 1.47, 1));
    model = h100;
    EXPECT_NEAR(1.141, 0.02, charge_rate_beside(0.3, 848000, 0, 0, true, 1024));
}

TEST(the_charge_rate_of_a_neutral_card_never_moves)
{
    static const char *const unknown[] = {"", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H100 PCIe", "MTT S4000"};
    for (unsigned n = 0; n < sizeof unknown / sizeof *unknown; n++)
        EXPECT(true, power_model_of(unknown[n]) == &power_model_neutral);
    EXPECT(0, power_model_neutral.switching);
    model = &power_model_neutral;
    usual_rate = 10;
    late_rate = 5;
    for (unsigned samples = 0; samples < 2; samples++)
        for (uint32_t clock = 500; clock <= 1024; clock += 131) {
            EXPECT_NEAR(1, 0, charge_rate_beside(0.3, 848000, 0, 0, samples, clock));
            EXPECT_NEAR(1, 0, charge_rate_beside(0.5, 100000, 0.4, 848000, samples, clock));
        }
}

/* So many time slices, 5 to 25 ms long, in which nothing happens for so long and then a launch every 100 us, of which
 * so many come and stay away at random; what is not charged of the last. */
static uint64_t time_slices_of(struct pace *pace, unsigned slices, double lost_ms, double at_random)
{
    uint64_t waived = 0, rng = 1;
    *pace = (struct pace){0};
    for (unsigned time_slice = 0; time_slice < slices; time_slice++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
        double ms = 5 + (double)(rng >> 33) / 0x1p31 * 20, chance = (double)(rng >> 10 & 1023) / 511.5 - 1;
        waived = pace_end(pace, (uint64_t)(ms * 1e6), (uint32_t)((ms - lost_ms) * 10 * (1 + chance * at_random)));
    }
    return waived;
}

static double waived_us(unsigned slices, double lost_ms, double at_random)
{
    struct pace pace;
    return (double)time_slices_of(&pace, slices, lost_ms, at_random) / (double)US;
}

static double rate_of(unsigned slices, double lost_ms, double at_random)
{
    struct pace pace;
    time_slices_of(&pace, slices, lost_ms, at_random);
    return pace.launches_per_ms;
}

TEST(the_launches_a_millisecond_are_known_of_programs_that_launch_evenly)
{
    EXPECT_NEAR(10, 0.1, rate_of(64, 0, 0));
    EXPECT_NEAR(10, 0.5, rate_of(24, 0, 0.15));
    EXPECT_NEAR(9, 0.3, rate_of(64, 1.5, 0.05)); /* what a pause costs is in it */
    EXPECT_NEAR(0, 0, rate_of(64, 0, 0.8));
    EXPECT_NEAR(0, 0, rate_of(12, 0, 0)); /* a few time slices do not tell */
    /* Beside another neighbour they are others soon. */
    struct pace pace;
    time_slices_of(&pace, 200, 0, 0);
    for (unsigned time_slice = 0; time_slice < 32; time_slice++)
        pace_end(&pace, (10 + time_slice % 7) * MS, (10 + time_slice % 7) * 9);
    EXPECT_NEAR(9, 0.2, pace.launches_per_ms);
}

TEST(what_a_pause_costs_a_program_is_not_charged)
{
    double believed_us = waived_us(201, 4, 0);
    EXPECT_NEAR(600, 400,
                believed_us); /* a twenty-fifth of whatever the last time slice was, and no more can be feigned */
    EXPECT_NEAR(150, 60, waived_us(201, 0.15, 0));
    EXPECT_NEAR(150, 60, waived_us(201, 0.15, 0.02));
    EXPECT_NEAR(0, 60, waived_us(201, 0, 0));    /* a launch is counted when it is over */
    EXPECT_NEAR(0, 0, waived_us(201, -1, 0));    /* a queue that fills at first is no loss */
    EXPECT_NEAR(0, 0, waived_us(201, 0.5, 0.5)); /* launches of all sizes do not tell */
    EXPECT_NEAR(0, 0, waived_us(5, 0.5, 0));     /* nor do a few time slices */
}
