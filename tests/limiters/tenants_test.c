/* What tenants of one card get beside each other: whole governors, their time slices and budgets, in virtual time. */
#include "check.h"
#include "h200.h"
#include "virtual.h"

#include "../../limiters/timeshare/budget.h"

#define SECOND (1000 * MS)

enum { RUN_S = 10 };

static struct tenant tenants[TENANTS];
static struct hetero_region_device accounts[TENANTS];

/* Kernels of half a millisecond, eight of them queued. */
static const struct tenant KERNELS = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8};
/* Ones that a time slice of ten milliseconds ends in the middle of. */
static const struct tenant LONG_KERNELS = {.kernel_ns = 13 * MS, .host_ns = 3 * US, .in_flight = 4};
/* A decoder: 118 launches a token, and the token is read before the next one is begun. */
static const struct tenant DECODER = {.kernel_ns = 14 * US, .host_ns = 3 * US, .batch = 118, .in_flight = 1000};
/* An inference loop: 60 launches a request, 20 ms between two. */
static const struct tenant LOOP = {
    .kernel_ns = 15 * US, .host_ns = 20 * US, .batch = 60, .in_flight = 1000, .rest_ns = 20 * MS};
/* Training: kernels of 200 us, queued far ahead. */
static const struct tenant TRAINING = {.kernel_ns = 200 * US, .host_ns = 5 * US, .in_flight = 1000};
/* Graphs, one of which is 1.24 ms. */
static const struct tenant GRAPHS = {.kernel_ns = 1240 * US, .host_ns = 10 * US, .in_flight = 4};

/* A tenant of so much of the card, which is not there yet. */
static struct tenant *add(unsigned number, const struct tenant *like, unsigned percent)
{
    struct tenant *tenant = &tenants[number];
    *tenant = *like;
    tenant->terms = (struct hetero_grant_device){.core = percent * 100, .policy = HETERO_POLICY_FIXED};
    tenant->account = &accounts[number];
    accounts[number] = (struct hetero_region_device){0};
    return tenant;
}

static void begin(void)
{
    usage_file();
    machine_begin(directory, 1);
}

static void together(unsigned count)
{
    for (unsigned t = 0; t < count; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(RUN_S * SECOND));
}

/* Launches of a tenant that has the card to itself and no limit. */
static double alone(const struct tenant *like)
{
    struct tenant *tenant = add(TENANTS - 1, like, 100);
    machine_begin(directory, 1);
    tenant_start(tenant);
    EXPECT(true, machine_run(RUN_S * SECOND));
    machine_end();
    machine_begin(directory, 1);
    return (double)tenant->launched;
}

/* What it got of its own speed alone, and of the card in the worst second. */
static void expect_of(unsigned number, double percent, double points, double in_any_second, double native)
{
    const struct tenant *tenant = &tenants[number];
    double got = 100 * (double)tenant->launched / native, worst = 0;
    for (unsigned s = 2; s < RUN_S; s++) {
        double off = tenant_got(tenant, s, s + 1) - tenant_got(tenant, 2, RUN_S);
        worst = off > worst ? off : -off > worst ? -off : worst;
    }
    printf("tenant %u: %.2f of %.0f, the worst second off by %.2f\n", number, got, percent, worst);
    EXPECT_NEAR(percent, points, got);
    EXPECT(true, worst <= in_any_second);
}

static void pair(const struct tenant *one, unsigned percent, const struct tenant *other, unsigned others,
                 double points)
{
    begin();
    double native = alone(one), natives = alone(other);
    add(0, one, percent);
    add(1, other, others);
    together(2);
    expect_of(0, percent, points, 3, native);
    expect_of(1, others, points, 3, natives);
    machine_end();
}

static void halves_of_a_card_are_halves(void)
{
    pair(&KERNELS, 50, &KERNELS, 50, 1);
}

static void a_decoder_beside_graphs_has_its_half(void)
{
    pair(&DECODER, 50, &GRAPHS, 50, 1);
}

static void long_kernels_beside_short_ones_take_no_more_than_their_half(void)
{
    pair(&LONG_KERNELS, 50, &KERNELS, 50, 1.5);
}

static void a_tenth_beside_nine_tenths_is_a_tenth(void)
{
    pair(&KERNELS, 10, &GRAPHS, 90, 1);
}

static void sixty_beside_thirty_leaves_slack(void)
{
    pair(&DECODER, 60, &KERNELS, 30, 1);
}

static void four_quarters_are_quarters(void)
{
    begin();
    double native = alone(&KERNELS), decoders = alone(&DECODER);
    add(0, &KERNELS, 25);
    add(1, &DECODER, 25);
    add(2, &KERNELS, 25);
    add(3, &DECODER, 25);
    together(4);
    for (unsigned t = 0; t < 4; t++)
        expect_of(t, 25, 1, 4, t % 2 ? decoders : native);
    machine_end();
}

static void what_an_idle_neighbour_leaves_is_lent_and_back_within_20_ms_of_its_first_launch(void)
{
    begin();
    double native = alone(&KERNELS), sum_ms = 0, most_ms = 0;
    for (unsigned moment = 0; moment < 50; moment++) {
        machine_begin(directory, 1);
        add(0, &KERNELS, 50)->terms.policy = HETERO_POLICY_ELASTIC;
        add(1, &KERNELS, 50)->from_ns = 4 * SECOND + moment * 700 * US;
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(3 * SECOND));
        EXPECT(true, (double)tenants[0].launched >= 0.97 * 0.3 * native);
        EXPECT(true, machine_run(3 * SECOND));
        double ms = (double)(tenants[1].first_ns - tenants[1].from_ns) / 1e6;
        sum_ms += ms / 50;
        most_ms = ms > most_ms ? ms : most_ms;
        EXPECT_NEAR(50, 2.5, tenant_got(&tenants[1], 5, 7));
        machine_end();
    }
    printf("back after %.1f ms on average, %.1f ms at most\n", sum_ms, most_ms);
    EXPECT(true, most_ms <= 20);
}

/* Three busy tenants, one of which is killed at a random moment, and another comes in its place; whether the one that
 * was killed had the time slice or not, some neighbour that waits for it has it soon. */
static void after_a_kill_the_next_owner_is_there_within_5_ms(unsigned kills)
{
    uint64_t last_ns = 0, sum_ns = 0;
    unsigned owners = 0, seed = 1;
    begin();
    for (unsigned t = 0; t < 3; t++) {
        add(t, t == 1 ? &DECODER : &KERNELS, 33);
        tenant_start(&tenants[t]);
    }
    EXPECT(true, machine_run(100 * MS));
    for (unsigned k = 0; k < kills; k++) {
        EXPECT(true, machine_run((uint64_t)rand_r(&seed) % (30 * MS)));
        unsigned victim = (unsigned)rand_r(&seed) % 3;
        bool owner = tenant_runs(&tenants[victim]), waits = false;
        for (unsigned t = 0; t < 3; t++)
            waits = waits || (t != victim && tenant_waits(&tenants[t]));
        tenant_kill(&tenants[victim]);
        uint64_t since_ns = machine_now();
        bool next = !waits;
        while (!next && machine_now() - since_ns <= 5 * MS) {
            EXPECT(true, machine_run(20 * US));
            for (unsigned t = 0; t < 3; t++)
                next = next || tenant_runs(&tenants[t]);
        }
        uint64_t took_ns = machine_now() - since_ns;
        if (owner && waits) {
            owners++;
            sum_ns += took_ns;
            last_ns = took_ns > last_ns ? took_ns : last_ns;
        }
        EXPECT(true, took_ns <= 5 * MS);
        tenant_start(&tenants[victim]);
    }
    printf("%u kills, %u of them of whoever had the time slice while another waited: the next owner after %.3f ms on "
           "average, %.3f ms at most\n",
           kills, owners, (double)sum_ns / 1e6 / owners, (double)last_ns / 1e6);
    EXPECT(true, owners > kills / 10);
    for (unsigned t = 0; t < 3; t++)
        tenants[t].launched = 0;
    EXPECT(true, machine_run(3000 * MS));
    for (unsigned t = 0; t < 3; t++)
        EXPECT(true, tenants[t].launched > 0);
    machine_end();
}

static void a_killed_tenant_is_followed_by_the_next_within_5_ms(void)
{
    after_a_kill_the_next_owner_is_there_within_5_ms(2000);
}

static void a_hundred_thousand_killed_tenants_are_each_followed_within_5_ms(void)
{
    after_a_kill_the_next_owner_is_there_within_5_ms(100000);
}

/* SIGSTOP, a debugger, a paused container: at whatever point of its time slice. */
static void a_tenant_stopped_in_its_slice_is_waited_for_once_and_has_its_share_again(void)
{
    usage_file();
    for (unsigned moment = 0; moment < 12; moment++) {
        machine_begin(directory, 1);
        add(0, &KERNELS, 50)->terms.priority = moment % 4 == 0 ? HETERO_PRIORITY_HIGH : HETERO_PRIORITY_LOW;
        add(1, &KERNELS, 50);
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(800 * MS));
        for (uint64_t ran_ns = 0; ran_ns <= moment * 400 * US; ran_ns = tenant_runs(&tenants[0]) ? ran_ns + 20 * US : 0)
            EXPECT(true, machine_run(20 * US));
        tenant_stop(&tenants[0]); /* at about two seconds */
        EXPECT(true, machine_run(20 * SECOND));
        EXPECT_NEAR(0, 0, tenant_got(&tenants[0], 4, 20));
        EXPECT_NEAR(50, 2, tenant_got(&tenants[1], 4, 20));
        tenant_continue(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        EXPECT_NEAR(50, 1.5, tenant_got(&tenants[0], 24, 29));
        EXPECT_NEAR(50, 2.5, tenant_got(&tenants[1], 24, 29));
        machine_end();
    }
}

/* It keeps the lock that says so. */
static void a_tenant_stopped_while_it_waits_holds_nobody_up_for_long(void)
{
    static const uint32_t priorities[] = {HETERO_PRIORITY_LOW, HETERO_PRIORITY_HIGH};
    usage_file();
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(directory, 1);
        add(0, &KERNELS, 10)->terms.priority = priorities[p];
        add(1, &KERNELS, 90)->terms.priority = priorities[p];
        tenant_start(&tenants[0]);
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(800 * MS));
        while (!tenant_waits(&tenants[0]))
            EXPECT(true, machine_run(20 * US));
        tenant_stop(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        printf("%.2f of 90\n", tenant_got(&tenants[1], 4, 9));
        EXPECT_NEAR(90, 4, tenant_got(&tenants[1], 4, 9));
        machine_end();
    }
}

/* In milliseconds, the mean. */
static double request_of(const struct tenant *tenant)
{
    return (double)tenant->batches_ns / (double)tenant->batches / (double)MS;
}

static void a_request_of_high_priority_waits_for_what_is_in_flight_and_no_longer(void)
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

static void shares_beside_high_priority_are_shares(void)
{
    static const unsigned percents[][2] = {{60, 30}, {50, 50}, {90, 10}, {10, 90}};
    usage_file();
    for (unsigned p = 0; p < 4; p++) {
        double native = alone(&KERNELS), natives = alone(&GRAPHS);
        add(0, &KERNELS, percents[p][0])->terms.priority = HETERO_PRIORITY_HIGH;
        add(1, &GRAPHS, percents[p][1]);
        together(2);
        expect_of(0, percents[p][0], 2, 3, native);
        expect_of(1, percents[p][1], 2, 3, natives);
        machine_end();
    }
}

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

static void what_a_pause_costs_a_program_is_made_good(void)
{
    static const struct tenant *const programs[] = {&COLD_DECODER, &COLD_LOOP};
    usage_file();
    for (unsigned p = 0; p < 2; p++)
        for (unsigned percent = 30; percent <= 60; percent += 30)
            for (unsigned others = 0; others < 2; others++) {
                machine_begin(directory, 1);
                double native = alone(programs[p]);
                add(0, programs[p], percent);
                add(1, &GRAPHS, 90 - percent);
                together(1 + others);
                expect_of(0, percent, 0.7, 3, native);
                machine_end();
            }
}

static void what_a_pause_costs_is_lost_to_all_alike(void)
{
    pair(&COLD_DECODER, 50, &GRAPHS, 50, 1.5);
}

static void a_program_whose_launches_are_of_all_sizes_is_given_nothing(void)
{
    usage_file();
    for (unsigned percent = 30; percent <= 60; percent += 30) {
        machine_begin(directory, 1);
        add(0, &MIXED, percent);
        together(1);
        EXPECT_NEAR(percent, 0.5, tenant_got(&tenants[0], 2, RUN_S));
        machine_end();
    }
}

static void a_tenant_that_says_that_it_is_owed_most_costs_its_neighbours_a_few_points_and_no_more(void)
{
    static const unsigned percents[][2] = {{50, 50}, {10, 90}, {90, 10}, {60, 30}};
    usage_file();
    for (unsigned p = 0; p < 4; p++) {
        machine_begin(directory, 1);
        add(0, &KERNELS, percents[p][0])->lies = true;
        add(1, &GRAPHS, percents[p][1]);
        together(2);
        printf("%.2f of %u beside one that lies\n", tenant_got(&tenants[1], 4, RUN_S), percents[p][1]);
        EXPECT_NEAR(percents[p][0], 3.5, tenant_got(&tenants[0], 4, RUN_S));
        EXPECT_NEAR(percents[p][1], 3.5, tenant_got(&tenants[1], 4, RUN_S));
        machine_end();
    }
}

/* Without a share the driver goes over from one to the next every 2 ms, which takes them 7 % of the card. */
static void processes_of_a_grant_get_their_share_of_what_they_have_alone(void)
{
    static const unsigned percents[] = {25, 50, 90};
    enum { PROCESSES = 4 };
    begin();
    for (unsigned t = 0; t < PROCESSES; t++)
        add(t, &KERNELS, 100);
    together(PROCESSES);
    double native = 0;
    for (unsigned t = 0; t < PROCESSES; t++)
        native += (double)tenants[t].launched;
    machine_end();
    for (unsigned p = 0; p < 3; p++) {
        machine_begin(directory, 1);
        for (unsigned t = 0; t < PROCESSES; t++)
            add(t, &KERNELS, percents[p])->account = &accounts[0];
        together(PROCESSES);
        double got = 0;
        for (unsigned t = 0; t < PROCESSES; t++)
            got += 100 * (double)tenants[t].launched / native;
        printf("%.2f of %u\n", got, percents[p]);
        EXPECT_NEAR(percents[p], 1, got);
        machine_end();
    }
}

/* Whoever of them has waited longest goes first: none waits for much longer than a time slice of each takes. */
static void processes_of_a_grant_have_their_slices_one_after_the_other(void)
{
    static const struct tenant SERVER = {.kernel_ns = 500 * US, .host_ns = 3 * US, .batch = 8, .in_flight = 8};
    static const unsigned percents[] = {20, 50, 90};
    enum { PROCESSES = 4 };
    usage_file();
    for (unsigned p = 0; p < 3; p++)
        for (unsigned others = 0; others < 2; others++) {
            machine_begin(directory, 1);
            for (unsigned t = 0; t < PROCESSES; t++)
                add(t, &SERVER, percents[p])->account = &accounts[0];
            add(PROCESSES, &GRAPHS, 100 - percents[p]);
            together(PROCESSES + others);
            double least = 1e18, most = 0, longest_ms = 0;
            for (unsigned t = 0; t < PROCESSES; t++) {
                double launched = (double)tenants[t].launched, waited_ms = (double)tenants[t].longest_ns / (double)MS;
                least = launched < least ? launched : least;
                most = launched > most ? launched : most;
                longest_ms = waited_ms > longest_ms ? waited_ms : longest_ms;
            }
            printf("%u%s: one waited %.0f ms; %.0f to %.0f launches\n", percents[p], others > 0 ? " beside graphs" : "",
                   longest_ms, least, most);
            EXPECT(true, longest_ms < 200 + 5000.0 / percents[p]); /* or whoever wins a race: 290 to 1330 */
            EXPECT(true, least > 0.85 * most);
            machine_end();
        }
}

static void a_process_that_is_stopped_while_it_waits_costs_its_grant_little(void)
{
    static const unsigned percents[] = {50, 90};
    usage_file();
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(directory, 1);
        for (unsigned t = 0; t < 3; t++) {
            add(t, &KERNELS, percents[p])->account = &accounts[0];
            tenant_start(&tenants[t]);
        }
        EXPECT(true, machine_run(2 * SECOND));
        while (!tenant_waits(&tenants[0]))
            EXPECT(true, machine_run(MS));
        tenant_stop(&tenants[0]);
        EXPECT(true, machine_run(8 * SECOND));
        double got = tenant_got(&tenants[1], 4, 9) + tenant_got(&tenants[2], 4, 9);
        double due = percents[p] * 14 / 15.0; /* of the card's time, which time slices make the most of */
        printf("%.2f of %.2f\n", got, due);
        EXPECT_NEAR(due, 1, got);
        machine_end();
    }
}

static void processes_of_a_grant_share_what_is_lent_to_it(void)
{
    enum { PROCESSES = 4 };
    static const unsigned percents[] = {1, 50};
    usage_file();
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(directory, 1);
        for (unsigned t = 0; t < PROCESSES; t++) {
            add(t, &KERNELS, percents[p])->account = &accounts[0];
            tenants[t].terms.policy = HETERO_POLICY_ELASTIC;
        }
        together(PROCESSES);
        double got = 0;
        for (unsigned t = 0; t < PROCESSES; t++) {
            printf("%.2f ", tenant_got(&tenants[t], 2, RUN_S));
            EXPECT_NEAR(100.0 / PROCESSES, 2, tenant_got(&tenants[t], 2, RUN_S));
            got += tenant_got(&tenants[t], 2, RUN_S);
        }
        printf("of a card that nobody else wants\n");
        EXPECT(true, got > 93); /* as much as when the driver goes over from one to the other */
        machine_end();
    }
}

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
    machine_begin(directory, seed);
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

static void whoever_shares_a_card_has_its_share_and_none_of_its_processes_starves(void)
{
    usage_file();
    for (uint64_t seed = 11; seed <= 22; seed++)
        mix(seed);
}

/* Products, which want more than the card may draw: without a share they run at lowered clocks. */
static const struct tenant PRODUCTS = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8, .draws_mw = 830000};
/* For which the card draws little. */
static const struct tenant LITTLE = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8, .draws_mw = 60000};
#define AVAILABLE_MW (LIMIT_MW * 0.98 - IDLE_MW)

static void a_power_limited_program_beside_an_unconstrained_one_gets_its_share_of_its_speed_alone(void)
{
    begin();
    double native = alone(&PRODUCTS) / power_slowdown(power_model_of("NVIDIA H200"), PRODUCTS.draws_mw, AVAILABLE_MW), natives = alone(&LITTLE);
    add(0, &PRODUCTS, 30);
    add(1, &LITTLE, 60);
    together(2);
    expect_of(0, 30, 0.7, 3, native);
    expect_of(1, 60, 0.7, 3, natives);
    machine_end();
}

static void a_program_as_fast_as_the_clock_has_its_share_beside_one_that_lowers_it(void)
{
    static const struct tenant LATE = {.kernel_ns = 500 * US, .host_ns = 3 * US, .in_flight = 8, .draws_mw = 830000,
                                       .clock = 910, .from_ns = 5 * SECOND};
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

static void slices_at_another_clock_do_not_make_pauses_look_dear(void)
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
    machine_begin(directory, 1);
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

static void what_the_card_drew_while_both_rested_is_charged_to_none(void)
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

static void a_thread_that_cannot_be_started_is_tried_again(void)
{
    begin();
    add(0, &KERNELS, 50);
    add(1, &KERNELS, 50);
    machine_refuse_threads(10);
    together(2);
    EXPECT_NEAR(50, 1.5, tenant_got(&tenants[0], 5, 10));
    EXPECT_NEAR(50, 1.5, tenant_got(&tenants[1], 5, 10));
    machine_end();
}

/* As in time namespaces: no tenant's share depends on another's clock. */
static void tenants_whose_clocks_disagree_have_their_shares(void)
{
    begin();
    double native = alone(&KERNELS);
    add(0, &KERNELS, 30);
    add(1, &KERNELS, 60)->skew_ns = INT64_C(86400) * 1000000000;
    together(2);
    expect_of(0, 30, 1, 3, native);
    expect_of(1, 60, 1, 3, native);
    machine_end();
}

static const struct test tests[] = {
    TEST(halves_of_a_card_are_halves),
    TEST(a_decoder_beside_graphs_has_its_half),
    TEST(long_kernels_beside_short_ones_take_no_more_than_their_half),
    TEST(a_tenth_beside_nine_tenths_is_a_tenth),
    TEST(sixty_beside_thirty_leaves_slack),
    TEST(four_quarters_are_quarters),
    TEST(what_an_idle_neighbour_leaves_is_lent_and_back_within_20_ms_of_its_first_launch),
    TEST(a_killed_tenant_is_followed_by_the_next_within_5_ms),
    TEST(a_hundred_thousand_killed_tenants_are_each_followed_within_5_ms),
    TEST(a_tenant_stopped_in_its_slice_is_waited_for_once_and_has_its_share_again),
    TEST(a_tenant_stopped_while_it_waits_holds_nobody_up_for_long),
    TEST(a_request_of_high_priority_waits_for_what_is_in_flight_and_no_longer),
    TEST(shares_beside_high_priority_are_shares),
    TEST(what_a_pause_costs_a_program_is_made_good),
    TEST(what_a_pause_costs_is_lost_to_all_alike),
    TEST(a_program_whose_launches_are_of_all_sizes_is_given_nothing),
    TEST(a_tenant_that_says_that_it_is_owed_most_costs_its_neighbours_a_few_points_and_no_more),
    TEST(processes_of_a_grant_get_their_share_of_what_they_have_alone),
    TEST(processes_of_a_grant_have_their_slices_one_after_the_other),
    TEST(a_process_that_is_stopped_while_it_waits_costs_its_grant_little),
    TEST(processes_of_a_grant_share_what_is_lent_to_it),
    TEST(whoever_shares_a_card_has_its_share_and_none_of_its_processes_starves),
    TEST(a_power_limited_program_beside_an_unconstrained_one_gets_its_share_of_its_speed_alone),
    TEST(a_program_as_fast_as_the_clock_has_its_share_beside_one_that_lowers_it),
    TEST(slices_at_another_clock_do_not_make_pauses_look_dear),
    TEST(what_the_card_drew_while_both_rested_is_charged_to_none),
    TEST(a_thread_that_cannot_be_started_is_tried_again),
    TEST(tenants_whose_clocks_disagree_have_their_shares),
};

int main(int count, char **arguments)
{
    return run_test(tests, sizeof tests / sizeof *tests, count, arguments);
}
