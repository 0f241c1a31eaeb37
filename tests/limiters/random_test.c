/* Machines at random, in virtual time: tenants of all kinds that stop, die, come back and lie. */
#include "machine/programs.h"

enum { MOST = 4, STEPS = 20, STEP_MS = 100 };

static uint64_t rng;

static unsigned roll(unsigned sides)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)((rng >> 33) % sides);
}

/* What becomes of a tenant: it is honest and stays, or something else. */
static struct {
    bool honest, stopped, dead;
    uint64_t waits_ns; /* since when it has waited out of debt; 0: it does not */
    uint64_t launched; /* at the last look */
} fate[MOST];

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

static void happen(unsigned t)
{
    struct tenant *tenant = &tenants[t];
    if (fate[t].honest)
        return;
    lie(tenant);
    unsigned what = roll(8);
    if (what == 0 && !fate[t].dead) {
        tenant_kill(tenant);
        fate[t].dead = true;
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

/* No honest one without work in flight waits for its time slice for longer than this, whatever the others do. */
static void expect_nobody_waits(unsigned count, uint64_t seed, uint64_t *longest_ns)
{
    for (unsigned t = 0; t < count; t++) {
        if (!fate[t].honest)
            continue;
        bool waits = tenant_waits(&tenants[t]) && tenants[t].asked_ns == tenants[t].done_ns &&
                     tenants[t].launched == fate[t].launched;
        fate[t].launched = tenants[t].launched;
        fate[t].waits_ns = !waits ? 0 : fate[t].waits_ns == 0 ? machine_now() : fate[t].waits_ns;
        uint64_t waited_ns = waits ? machine_now() - fate[t].waits_ns : 0;
        *longest_ns = waited_ns > *longest_ns ? waited_ns : *longest_ns;
        if (waited_ns > 500 * MS)
            printf("machine %lu: tenant %u waits %.0f ms\n", (unsigned long)seed, t, (double)waited_ns / 1e6);
        EXPECT(true, waited_ns <= 500 * MS);
    }
}

static uint64_t launches(unsigned count)
{
    uint64_t sum = 0;
    for (unsigned t = 0; t < count; t++)
        sum += fate[t].honest ? tenants[t].launched : 0;
    return sum;
}

/* One machine of two seconds. */
static void machine(uint64_t seed, uint64_t *longest_ns)
{
    static const uint64_t kernels_us[] = {50, 200, 1000, 4000, 13000, 60000, 250000, 1000000};
    rng = seed;
    machine_begin(seed);
    unsigned count = 2 + roll(MOST - 1), left = 100;
    memset(fate, 0, sizeof fate);
    for (unsigned t = 0; t < count; t++) {
        unsigned percent = 1 + roll(left - (count - t - 1));
        left -= percent;
        const struct tenant like = {.kernel_ns = kernels_us[roll(8)] * US,
                                    .host_ns = (3 + roll(30)) * US,
                                    .in_flight = 1 + roll(8),
                                    .batch = roll(3) * 4,
                                    .rest_ns = roll(2) * 5 * MS};
        struct tenant *tenant = add(t, &like, percent);
        tenant->terms.policy = roll(2) ? HETERO_POLICY_ELASTIC : HETERO_POLICY_FIXED;
        tenant->terms.priority = roll(4) == 0 ? HETERO_PRIORITY_HIGH : HETERO_PRIORITY_LOW;
        fate[t].honest = t == 0 || roll(2) == 0;
        tenant_start(tenant);
    }
    uint64_t before = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        for (unsigned part = 0; part < 4; part++) {
            EXPECT(true, machine_run(STEP_MS / 4 * MS));
            expect_nobody_waits(count, seed, longest_ns);
        }
        for (unsigned t = 0; t < count; t++)
            happen(t);
        before = step == 0 ? launches(count) : before;
    }
    EXPECT(true, launches(count) > 0);
    machine_end();
}

static void machines(uint64_t count)
{
    uint64_t longest_ns = 0;
    for (uint64_t seed = 1; seed <= count; seed++)
        machine(seed, &longest_ns);
    printf("%lu machines: no honest tenant waited for its time slice for more than %.0f ms\n", (unsigned long)count,
           (double)longest_ns / 1e6);
}

static void on_a_hundred_machines_nobody_is_kept_from_a_card_by_what_others_do(void)
{
    machines(100);
}

static void on_ten_thousand_machines_nobody_is_kept_from_a_card_by_what_others_do(void)
{
    machines(10000);
}

static const struct test tests[] = {
    TEST(on_a_hundred_machines_nobody_is_kept_from_a_card_by_what_others_do),
    TEST(on_ten_thousand_machines_nobody_is_kept_from_a_card_by_what_others_do),
};

int main(int count, char **arguments)
{
    return run_test(tests, sizeof tests / sizeof *tests, count, arguments);
}
