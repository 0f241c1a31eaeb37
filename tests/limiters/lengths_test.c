/* Programs of many small kernels and now and then a long one, at random, in virtual time.
 *
 * lengths_test TEST [SEED [COUNT]]: the machines of so many seeds, from this one on. */
#include "machine/programs.h"

enum { SMALL_MOST = 10000, BEGIN_S = 2, MOST_POINTS = 5 };

static uint64_t rng;
static unsigned judged, off;
static uint16_t sizes[2][SMALL_MOST + 1];

static unsigned roll(unsigned sides)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)((rng >> 33) % sides);
}

/* Any number from `least` to `most`, of each magnitude as often. */
static unsigned of_any_size(unsigned least, unsigned most)
{
    unsigned magnitudes = 1;
    while (least << magnitudes < most)
        magnitudes++;
    unsigned from = least << roll(magnitudes), any = from + roll(from);
    return any < most ? any : most;
}

static struct tenant drawn(unsigned number)
{
    unsigned small = of_any_size(50, SMALL_MOST), small_us = of_any_size(2, 40);
    for (unsigned k = 0; k < small; k++)
        sizes[number][k] = (uint16_t)small_us;
    sizes[number][small] = (uint16_t)of_any_size(2000, 20000);
    struct tenant like = {.kernel_ns = small_us * US, .in_flight = 100000, .pattern_us = sizes[number]};
    like.host_ns = (small_us + of_any_size(1, 80)) * US;
    like.batch = like.pattern = small + 1;
    return like;
}

/* What it needs of the card when it is alone, in percent. */
static double needs(const struct tenant *like)
{
    double small_us = (double)(like->pattern - 1), long_us = like->pattern_us[like->pattern - 1];
    double card_us = small_us * (double)like->kernel_ns / US + long_us;
    return 100 * card_us / (small_us * (double)like->host_ns / US + long_us);
}

/* A long kernel more or less is this much of the time that is looked at. */
static double quantum(const struct tenant *tenant)
{
    return tenant->pattern == 0 ? 0 : tenant->pattern_us[tenant->pattern - 1] / (1e4 * (RUN_S - BEGIN_S));
}

/* One that has too much or too little is off by little, and there are few of those. */
static void judge(uint64_t seed, unsigned t, bool is_alone)
{
    const struct tenant *tenant = &tenants[t];
    double got = tenant_got(tenant, BEGIN_S, RUN_S), percent = tenant->terms.core / 100.0, one = quantum(tenant);
    bool is_rare = tenant->pattern > 0;
    printf("%lu, tenant %u: %.2f of %.0f", (unsigned long)seed, t, got, percent);
    if (is_rare)
        printf(", %u of %lu us each %lu and one of %u%s\n", tenant->pattern - 1,
               (unsigned long)(tenant->kernel_ns / US), (unsigned long)(tenant->host_ns / US),
               tenant->pattern_us[tenant->pattern - 1], is_alone ? ", alone" : "");
    else
        printf(", its neighbour\n");
    bool over = is_rare && got > percent + 1 + one, under = !is_rare && got < percent - 1;
    double need = is_rare && is_alone ? needs(tenant) : 0;
    under = under || got < (need < percent ? need : percent) - 1 - one;
    EXPECT(true, !is_rare || got < percent + MOST_POINTS);
    EXPECT(true, is_rare || got > percent - MOST_POINTS);
    judged++;
    off += over || under;
}

/* One alone, or beside one that always wants the card, or two of them. */
static void mix(uint64_t seed)
{
    rng = seed * UINT64_C(0x9e3779b97f4a7c15);
    machine_begin(seed);
    unsigned kind = roll(3), count = kind == 0 ? 1 : 2;
    for (unsigned t = 0; t < count; t++) {
        bool is_neighbour = kind == 1 && t == 1;
        struct tenant like = is_neighbour ? KERNELS : drawn(t);
        add(t, &like, is_neighbour ? 60 : 10 + roll(31));
    }
    for (unsigned t = 0; t < count; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(RUN_S * SECOND));
    for (unsigned t = 0; t < count; t++)
        judge(seed, t, kind == 0);
    machine_end();
}

TEST(programs_of_small_and_rare_long_kernels_have_their_shares)
{
    uint64_t first_seed = (uint64_t)given(1, 1), seeds = (uint64_t)given(2, 200);
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++)
        mix(seed);
    printf("%u of %u are off by more than a point\n", off, judged);
    EXPECT(true, off * 20 <= judged + 20);
}
