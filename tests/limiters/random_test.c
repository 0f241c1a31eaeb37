/* Machines at random, in virtual time: tenants of all kinds that stop, die, come back and lie.
 *
 * random_test TEST [SEED [COUNT]]: the machines of so many seeds, from this one on (1, and as many as take some
 * seconds). A seed makes one machine, always.
 */
#include "machine/programs.h"

#include <math.h>
#include <time.h>

enum { MOST = 4, PARTS = 4, SHARED_PERCENT = 90 };

/* One of so many system calls takes a task its processor for a while. */
#define PREEMPTED 64

/* No honest tenant out of debt waits longer for a launch to pass, whatever the others do. */
#define WAIT_MOST_NS (500 * MS)

static uint64_t rng, first_seed = 1, seeds;

static unsigned roll(unsigned sides)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)((rng >> 33) % sides);
}

static unsigned tenant_count;

/* What becomes of a tenant: it is honest and stays, or something else. */
static struct {
    bool honest, stopped, dead;
    uint64_t waits_ns; /* since when it has waited out of debt; 0: it does not */
    uint64_t launched; /* at the last look */
} fate[MOST];

static struct {
    uint64_t time_slices, kills, longest_ns;
    double furthest; /* points from its share that an honest one was */
} seen;

static uint64_t seed;

static void expect(bool truth, unsigned t, const char *what, double value)
{
    if (truth)
        return;
    printf("machine %lu, tenant %u of %u: %s: %g (repeat: random_test TEST %lu 1)\n", (unsigned long)seed, t,
           tenant_count, what, value, (unsigned long)seed);
    exit(1);
}

/* A page of a liar: any state, beats that go on, all that can be owed. */
static void lie(const struct tenant *tenant)
{
    struct hetero_page *page = tenant_page(tenant);
    page->state = roll(6);
    page->beat += roll(2);
    page->busy_beat += roll(2);
    page->busy = roll(2) * roll(9);
    page->owed = roll(3) * 8;
    page->version = roll(8) == 0 ? roll(3) : HETERO_BOARD_VERSION;
}

static void end(unsigned t)
{
    seen.time_slices += tenants[t].time_slices;
    fate[t].dead = true;
}

static void happen(unsigned t)
{
    struct tenant *tenant = &tenants[t];
    if (fate[t].honest)
        return;
    lie(tenant);
    unsigned what = roll(8);
    if (what == 0 && !fate[t].dead) {
        tenant_kill(tenant);
        end(t);
        seen.kills++;
    } else if (what == 1 && fate[t].dead) {
        tenant_start(tenant);
        fate[t].dead = fate[t].stopped = false;
    } else if (what == 2 && !fate[t].dead) {
        tenant_stop(tenant);
        fate[t].stopped = true;
    } else if (what == 3 && fate[t].stopped && !fate[t].dead) {
        tenant_continue(tenant);
        fate[t].stopped = false;
    } else if (what == 4) {
        tenant->skew_ns += (int64_t)roll(2000) * (int64_t)MS;
    }
}

/* No two honest ones of one priority have the time slice together. For a second no book is overdrawn. */
static void expect_nobody_is_beside(void)
{
    for (unsigned t = 0; t < tenant_count; t++)
        for (unsigned other = 0; other < tenant_count && fate[t].honest; other++)
            expect(!fate[other].honest || !(tenants[t].beside >> other & 1), t, "has the time slice beside tenant",
                   other);
}

static void expect_nobody_waits(void)
{
    for (unsigned t = 0; t < tenant_count; t++) {
        if (!fate[t].honest)
            continue;
        bool waits = tenant_is_kept(&tenants[t]) && tenants[t].launched == fate[t].launched;
        fate[t].launched = tenants[t].launched;
        fate[t].waits_ns = !waits ? 0 : fate[t].waits_ns == 0 ? machine_now() : fate[t].waits_ns;
        uint64_t waited_ns = waits ? machine_now() - fate[t].waits_ns : 0;
        seen.longest_ns = waited_ns > seen.longest_ns ? waited_ns : seen.longest_ns;
        expect(waited_ns <= WAIT_MOST_NS, t, "ms out of debt without a launch", (double)waited_ns / 1e6);
    }
}

static bool all_honest(void)
{
    bool honest = true;
    for (unsigned t = 0; t < tenant_count; t++)
        honest = honest && fate[t].honest;
    return honest;
}

/* The law of a fixed share, from above: what its last time slice runs over, and three points, because work that is
 * shorter than the driver's turns gets more than half of the clock beside a kernel of seconds. A page that lies lowers
 * what others are charged. */
static void expect_nobody_takes_more(uint64_t ran_ns)
{
    for (unsigned t = 0; t < tenant_count && all_honest(); t++) {
        const struct tenant *tenant = &tenants[t];
        if (tenant->terms.policy != HETERO_POLICY_FIXED)
            continue;
        uint64_t share_ns = ran_ns * tenant->terms.core / HETERO_CORE_FULL;
        uint64_t over_ns = ran_ns * 3 / 100 + 2 * BUDGET_TIME_SLICE_NS + tenant->kernel_ns;
        double beyond_ms = ((double)tenant->done_ns - (double)share_ns - (double)over_ns) / 1e6;
        expect(beyond_ms <= 0, t, "ms of the device beyond its share", beyond_ms);
    }
}

static void add_at_random(unsigned t, unsigned percent, const uint64_t *kernels_us, unsigned kernels)
{
    const struct tenant like = {.kernel_ns = kernels_us[roll(kernels)] * US,
                                .host_ns = (3 + roll(30)) * US,
                                .in_flight = 1 + roll(8),
                                .batch = roll(3) * 4,
                                .rest_ns = roll(2) * 5 * MS};
    struct tenant *tenant = add(t, &like, percent);
    tenant->terms.policy = roll(2) ? HETERO_POLICY_ELASTIC : HETERO_POLICY_FIXED;
    tenant->terms.priority = roll(4) == 0 ? HETERO_PRIORITY_HIGH : HETERO_PRIORITY_LOW;
}

static uint64_t launches(void)
{
    uint64_t sum = 0;
    for (unsigned t = 0; t < tenant_count; t++)
        sum += fate[t].honest ? tenants[t].launched : 0;
    return sum;
}

static void machine_of(const uint64_t *kernels_us, unsigned kernels, unsigned steps, uint64_t step_ns,
                       uint64_t timer_ns)
{
    unsigned left = 100;
    rng = seed;
    machine_begin(seed);
    machine_delay_timers(timer_ns);
    machine_poll(timer_ns / 6); /* looks every 2 us took nine tenths of the time */
    machine_preempt(PREEMPTED);
    tenant_count = 2 + roll(MOST - 1);
    memset(fate, 0, sizeof fate);
    for (unsigned t = 0; t < tenant_count; t++) {
        unsigned percent = 1 + roll(left - (tenant_count - t - 1));
        left -= percent;
        add_at_random(t, percent, kernels_us, kernels);
        fate[t].honest = t == 0 || roll(2) == 0;
        tenant_start(&tenants[t]);
    }
    for (unsigned step = 0; step < steps; step++) {
        for (unsigned part = 0; part < PARTS; part++) {
            expect(machine_run(step_ns / PARTS), 0, "runs for ever at second", (double)machine_now() / 1e9);
            expect_nobody_waits();
        }
        for (unsigned t = 0; t < tenant_count; t++)
            happen(t);
    }
    if (steps * step_ns < SECOND)
        expect_nobody_is_beside();
    expect_nobody_takes_more(steps * step_ns);
    expect(launches() > 0, 0, "launches", 0);
    for (unsigned t = 0; t < tenant_count; t++)
        if (!fate[t].dead)
            end(t);
    machine_end();
}

/* Beside high priority one kernel of a tenant is in flight at a time: the card waits a moment after each, which costs
 * it up to a 50th of its share. */
static void expect_its_share(unsigned t, unsigned seconds, double points)
{
    const struct tenant *tenant = &tenants[t];
    bool beside_high = false;
    for (unsigned other = 0; other < tenant_count; other++)
        beside_high = beside_high || tenants[other].terms.priority > tenant->terms.priority;
    double share = tenant->terms.core / 100.0, off = tenant_got(tenant, 2, seconds + 1) - share;
    if (off > 0 && tenant->terms.policy == HETERO_POLICY_ELASTIC)
        off = 0;
    seen.furthest = fabs(off) > seen.furthest ? fabs(off) : seen.furthest;
    expect(fabs(off) <= points + (beside_high ? share / 50 : 0), t, "points from its share", off);
    seen.time_slices += tenant->time_slices;
}

static void of_honest(const uint64_t *kernels_us, unsigned kernels, unsigned seconds, double points)
{
    unsigned left = SHARED_PERCENT;
    rng = seed;
    machine_begin(seed);
    tenant_count = 2 + roll(MOST - 1);
    for (unsigned t = 0; t < tenant_count; t++) {
        unsigned percent = 1 + roll(left - (tenant_count - t - 1));
        left -= percent;
        add_at_random(t, percent, kernels_us, kernels);
        tenants[t].batch = 0;
        tenant_start(&tenants[t]);
    }
    expect(machine_run(seconds * SECOND), 0, "runs for ever at second", (double)machine_now() / 1e9);
    for (unsigned t = 0; t < tenant_count; t++)
        expect_its_share(t, seconds, points);
    machine_end();
}

/* Honest tenants that always want the card, for long enough for a point to be more than a time slice. */
static void of_short_kernels(void)
{
    static const uint64_t kernels_us[] = {50, 200, 1000, 4000};
    of_honest(kernels_us, 4, 5, 1);
}

/* Kernels longer than a time slice go on beside the next tenant's. Beside them, work that is shorter than the driver's
 * turns gets more of the clock than its part. High priority does not wait for them. */
static void of_long_kernels(void)
{
    static const uint64_t kernels_us[] = {1000, 4000, 13000, 60000, 250000};
    of_honest(kernels_us, 5, 40, 6);
}

/* Kernels that the smallest share pays for, and ones that it does not. */
static void of_two_seconds(void)
{
    static const uint64_t kernels_us[] = {50, 200, 1000, 4000, 13000, 60000, 250000, 1000000};
    machine_of(kernels_us, 8, 20, 100 * MS, 3 * US);
}

/* Longer than anybody may wait, and a quarter of a second for the wait to begin. Without kernels of microseconds and
 * with late timers it takes a tenth of the steps. */
static void of_three_quarters_of_a_second(void)
{
    static const uint64_t kernels_us[] = {1000, 4000, 13000, 60000, 250000, 1000000};
    machine_of(kernels_us, 6, 15, 50 * MS, 60 * US);
}

static void for_each_seed(void (*run)(void), unsigned usual)
{
    seeds = seeds == 0 ? usual : seeds;
    for (seed = first_seed; seed < first_seed + seeds; seed++)
        run();
    printf("%lu machines from seed %lu on, %lu time slices, %lu kills in %.1f s of processor time\n",
           (unsigned long)seeds, (unsigned long)first_seed, (unsigned long)seen.time_slices, (unsigned long)seen.kills,
           (double)clock() / CLOCKS_PER_SEC);
}

static void on_machines_of_honest_tenants_each_has_its_share_within_a_point(void)
{
    for_each_seed(of_short_kernels, 100);
    printf("no share was off by more than %.2f points\n", seen.furthest);
}

static void on_machines_of_long_kernels_each_has_its_share_within_six_points(void)
{
    for_each_seed(of_long_kernels, 5); /* one takes a second */
    printf("no share was off by more than %.2f points\n", seen.furthest);
}

static void nobody_is_kept(void (*run)(void))
{
    for_each_seed(run, 100);
    printf("no honest tenant waited out of debt for more than %.0f ms\n", (double)seen.longest_ns / 1e6);
}

static void on_long_machines_nobody_is_kept_from_a_card_by_what_others_do(void)
{
    nobody_is_kept(of_two_seconds);
}

static void on_short_machines_nobody_is_kept_from_a_card_by_what_others_do(void)
{
    nobody_is_kept(of_three_quarters_of_a_second);
}

static const struct test tests[] = {
    TEST(on_machines_of_honest_tenants_each_has_its_share_within_a_point),
    TEST(on_machines_of_long_kernels_each_has_its_share_within_six_points),
    TEST(on_long_machines_nobody_is_kept_from_a_card_by_what_others_do),
    TEST(on_short_machines_nobody_is_kept_from_a_card_by_what_others_do),
};

int main(int count, char **arguments)
{
    first_seed = count > 2 ? strtoull(arguments[2], NULL, 10) : first_seed;
    seeds = count > 3 ? strtoull(arguments[3], NULL, 10) : seeds;
    return run_test(tests, sizeof tests / sizeof *tests, count, arguments);
}
