/* Grants and programs mixed at random, in virtual time. */
#include "machine/programs.h"

static unsigned roll(uint64_t *rng, unsigned sides)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)((*rng >> 33) % sides);
}

/* One to three grants of 5 % and more, nine tenths of the card at most, of one to three programs each. */
static void mix(uint64_t seed)
{
    static const struct tenant *const programs[] = {&KERNELS, &GRAPHS, &TRAINING, &DECODER, &LONG_KERNELS};
    enum { WATCHED_S = 6 };
    unsigned count = 0, first[4] = {0}, percent[3], left = 90, grants;
    uint64_t rng = seed, launched[TENANTS], since_ns[TENANTS], done_ns[TENANTS];
    double waited_ms[TENANTS] = {0};
    machine_begin(seed);
    grants = 1 + roll(&rng, 3);
    for (unsigned g = 0; g < grants; g++) {
        percent[g] = 5 + roll(&rng, left - (grants - 1 - g) * 5 - 4);
        left -= percent[g];
        bool elastic = roll(&rng, 2) == 1;
        first[g + 1] = count + 1 + (g < 2 ? roll(&rng, 3) : roll(&rng, 2));
        for (; count < first[g + 1]; count++) {
            add(count, programs[roll(&rng, 5)], percent[g])->account = &accounts[first[g]];
            tenants[count].terms.policy = elastic ? HETERO_POLICY_ELASTIC : HETERO_POLICY_FIXED;
        }
    }
    for (unsigned t = 0; t < count; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(2 * SECOND));
    for (unsigned t = 0; t < count; t++) {
        launched[t] = tenants[t].launched;
        done_ns[t] = tenants[t].done_ns;
        since_ns[t] = machine_now();
    }
    for (unsigned i = 0; i < WATCHED_S * 100; i++) {
        EXPECT(true, machine_run(10 * MS));
        for (unsigned t = 0; t < count; t++) {
            double ms = (double)(machine_now() - since_ns[t]) / (double)MS;
            waited_ms[t] = ms > waited_ms[t] ? ms : waited_ms[t];
            since_ns[t] = tenants[t].launched != launched[t] ? machine_now() : since_ns[t];
            launched[t] = tenants[t].launched;
        }
    }
    for (unsigned g = 0; g < grants; g++) {
        unsigned processes = first[g + 1] - first[g];
        bool fixed = tenants[first[g]].terms.policy == HETERO_POLICY_FIXED;
        double got = 0, due = processes == 1 ? percent[g] : percent[g] * 14 / 15.0, longest_ms = 0;
        for (unsigned t = first[g]; t < first[g + 1]; t++) {
            got += (double)(tenants[t].done_ns - done_ns[t]) / (WATCHED_S * (double)SECOND) * 100;
            longest_ms = waited_ms[t] > longest_ms ? waited_ms[t] : longest_ms;
        }
        double bearable_ms = 150 + 6000.0 * processes / percent[g];
        printf("%lu: %u%% %s, %u processes: %.1f, one waited %.0f ms of %.0f\n", (unsigned long)seed, percent[g],
               fixed ? "fixed" : "elastic", processes, got, longest_ms, bearable_ms);
        EXPECT(true, got > due - 2);
        EXPECT(true, !fixed || got < percent[g] + 2);
        EXPECT(true, longest_ms < bearable_ms);
    }
    machine_end();
}

TEST(whoever_shares_a_card_has_its_share_and_none_of_its_processes_starves)
{
    for (uint64_t seed = 11; seed <= 22; seed++)
        mix(seed);
}
