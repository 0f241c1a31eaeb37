/* Programs whose kernels are short whenever their stream is held, in virtual time: by holds alone they need little of
 * the card. */
#include "machine/programs.h"

#define UNBEGUN_NS (40 * US)
#define TINY_NS    UINT64_C(100)

enum { TINY_LAUNCHES = 15 }; /* as many as a hold has, but for the one that noticed it */

static uint64_t long_ns;
static bool adapts;

/* Whether the card comes to what was just launched within the program's patience. */
static bool begins(const struct tenant *tenant, uint64_t asked_before_ns)
{
    uint64_t until_ns = machine_now() + UNBEGUN_NS;
    while (!tenant_is_idle(tenant) && tenant->done_ns <= asked_before_ns) {
        if (machine_now() >= until_ns)
            return false;
        tenant_sleep(2 * US);
    }
    return true;
}

static void launch_and_look(struct tenant *tenant, uint64_t ns)
{
    uint64_t asked_before_ns = tenant->asked_ns;
    tenant_launch(tenant, 0, ns);
    for (unsigned tiny = 0; adapts && tiny < TINY_LAUNCHES; tiny++) {
        if (tiny == 0 && begins(tenant, asked_before_ns))
            break;
        tenant_launch(tenant, 0, TINY_NS);
    }
}

static void adapt(struct tenant *tenant)
{
    for (tenant->steps = 0;; tenant->steps++) {
        launch_and_look(tenant, TINY_NS);
        if (!tenant_is_idle(tenant))
            tenant_synchronise(tenant);
        launch_and_look(tenant, long_ns);
        tenant_synchronise(tenant);
    }
}

static double run(unsigned seed, unsigned share, bool adaptive, unsigned others, double *other_got)
{
    machine_begin(seed);
    adapts = adaptive;
    add(0, &KERNELS, share)->body = adapt;
    add(1, &KERNELS, 60);
    together(1 + others);
    double got = tenant_got(&tenants[0], 2, RUN_S);
    *other_got = others > 0 ? tenant_got(&tenants[1], 2, RUN_S) : 60;
    machine_end();
    return got;
}

TEST(a_program_that_is_short_while_it_is_held_has_its_share)
{
    static const uint64_t lengths_ns[] = {30 * US, 100 * US, 150 * US, 200 * US, 400 * US};
    for (unsigned l = 0; l < sizeof lengths_ns / sizeof *lengths_ns; l++)
        for (unsigned others = 0; others < 2; others++)
            for (unsigned seed = 1; seed <= 3; seed++) {
                double other, honest_other;
                long_ns = lengths_ns[l];
                double honest = run(seed, 10, false, others, &honest_other), got = run(seed, 10, true, others, &other);
                printf("kernels of %3u us%s: %.1f, honest %.1f; the other %.1f, %.1f\n", (unsigned)(long_ns / US),
                       others > 0 ? " beside a 60" : "", got, honest, other, honest_other);
                EXPECT(true, got <= 13);
                EXPECT(true, other >= 58);
            }
}

/* Looks find such kernels, but charge the part behind the look alone. What it gets until it is known is not taken back:
 * 36 of 30 in the eight seconds here, and 42 while only launches below half a millisecond were timed where they run. An
 * H200 gave it 44 in four seconds (2026-11-30). */
TEST(one_of_longer_kernels_is_found_out_in_a_second)
{
    long_ns = 700 * US;
    for (unsigned seed = 1; seed <= 3; seed++) {
        double other, got = run(seed, 30, true, 0, &other);
        printf("%.1f\n", got);
        EXPECT(true, got <= 40);
    }
}
