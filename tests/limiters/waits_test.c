/* Programs whose streams stand at a wait, in virtual time: for a function on the host, or for a word of memory that the
 * program itself writes once another launch is made. The card does nothing for them meanwhile. */
#include "machine/programs.h"

/* What a program of steps does. */
static struct {
    uint64_t work_ns, host_ns; /* of the card behind a function on the host */
    unsigned ahead;            /* steps that it launches ahead */
} kind;

static uint64_t memory_words[TENANTS];
static uint64_t longest_ns[TENANTS];

/* Functions on the host and work of the card in turns, in one stream. */
static void host_and_card(struct tenant *tenant)
{
    for (;;) {
        for (unsigned step = 0; step < kind.ahead; step++) {
            tenant_host(tenant, 0, kind.host_ns);
            tenant_launch(tenant, 0, kind.work_ns);
            tenant->steps++;
        }
        tenant_synchronise(tenant);
    }
}

/* Work in one stream waits for a word that the program writes after a launch into the other, 20 ms later. */
static void own_launch(struct tenant *tenant)
{
    uint64_t *word = &memory_words[tenant - tenants], *longest = &longest_ns[tenant - tenants];
    for (unsigned launch = 0; launch < 100; launch++) {
        tenant_launch(tenant, 0, kind.work_ns);
        tenant_synchronise(tenant);
    }
    for (tenant->steps = 1;; tenant->steps++) {
        uint64_t since = machine_now();
        tenant_wait_word(tenant, 0, word, tenant->steps);
        tenant_launch(tenant, 0, kind.work_ns);
        tenant_sleep(20 * MS);
        tenant_launch(tenant, 1, kind.work_ns);
        tenant_write(word, tenant->steps);
        tenant_synchronise(tenant);
        uint64_t took_ns = machine_now() - since;
        *longest = took_ns > *longest ? took_ns : *longest;
    }
}

/* A word that the program writes 20 ms later keeps one stream, and the other follows what is behind it. */
static void follow(struct tenant *tenant)
{
    uint64_t *word = &memory_words[tenant - tenants];
    for (tenant->steps = 1;; tenant->steps++) {
        tenant_wait_word(tenant, 0, word, tenant->steps);
        tenant_launch(tenant, 0, kind.work_ns);
        tenant_follow(tenant, 1);
        tenant_launch(tenant, 1, kind.work_ns);
        tenant_sleep(20 * MS);
        tenant_write(word, tenant->steps);
        tenant_synchronise(tenant);
    }
}

/* Of two processes each waits for what the other one's host writes once it has made its launch. */
static void exchange(struct tenant *tenant)
{
    unsigned rank = (unsigned)(tenant - tenants);
    for (tenant->steps = 1;; tenant->steps++) {
        uint64_t since = machine_now();
        tenant_launch(tenant, 0, kind.work_ns);
        tenant_write(&memory_words[rank], tenant->steps);
        tenant_wait_word(tenant, 0, &memory_words[1 - rank], tenant->steps);
        tenant_launch(tenant, 0, kind.work_ns);
        tenant_synchronise(tenant);
        uint64_t took_ns = machine_now() - since;
        longest_ns[rank] = took_ns > longest_ns[rank] ? took_ns : longest_ns[rank];
    }
}

/* A burst of launches behind a word, which is written while the gate is closed. */
static void hoarder(struct tenant *tenant)
{
    uint64_t *word = &memory_words[tenant - tenants];
    for (tenant->steps = 1;; tenant->steps++) {
        tenant_wait_word(tenant, 0, word, tenant->steps);
        for (unsigned launch = 0; launch < 4; launch++)
            tenant_launch(tenant, 0, kind.work_ns);
        while (tenant_runs(tenant))
            tenant_sleep(MS);
        tenant_write(word, tenant->steps);
        tenant_synchronise(tenant);
    }
}

static struct tenant *add_body(unsigned number, void (*body)(struct tenant *tenant), unsigned percent)
{
    struct tenant *tenant = add(number, &KERNELS, percent);
    tenant->body = body;
    memory_words[number] = longest_ns[number] = 0;
    return tenant;
}

static double steps_of(void (*body)(struct tenant *tenant), unsigned percent)
{
    machine_begin(1);
    struct tenant *tenant = add_body(0, body, percent);
    together(1);
    machine_end();
    return (double)tenant->steps;
}

TEST(functions_on_the_host_cost_no_time_of_the_card)
{
    static const struct {
        uint64_t work_us, host_us;
        unsigned percent;
    } cases[] = {{10, 20000, 10}, {10, 20000, 50}, {2000, 20000, 15}, {2000, 20000, 50}, {16000, 20000, 50}};
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++)
        for (unsigned ahead = 1; ahead <= 10; ahead += 9) {
            kind.work_ns = cases[c].work_us * US;
            kind.host_ns = cases[c].host_us * US;
            kind.ahead = ahead;
            double free_steps = steps_of(host_and_card, 100), steps = steps_of(host_and_card, cases[c].percent);
            printf("%u us behind %u us, %u ahead, at %u: %.3f of the time\n", (unsigned)cases[c].work_us,
                   (unsigned)cases[c].host_us, ahead, cases[c].percent, free_steps / steps);
            EXPECT(true, free_steps <= 1.05 * steps);
        }
}

TEST(work_behind_functions_on_the_host_has_its_share)
{
    kind.work_ns = 16 * MS;
    kind.host_ns = 20 * MS;
    kind.ahead = 10;
    double free_steps = steps_of(host_and_card, 100);
    double needs = 100.0 * (double)kind.work_ns / (double)(kind.work_ns + kind.host_ns);
    for (unsigned percent = 10; percent <= 30; percent += 10) {
        double got = needs * steps_of(host_and_card, percent) / free_steps;
        printf("%.1f of %u\n", got, percent);
        EXPECT_NEAR(percent, 1 + percent / 20.0, got);
    }
}

TEST(a_program_that_waits_for_a_launch_of_its_own_goes_on)
{
    static const unsigned percents[] = {10, 50, 99};
    static const uint64_t works_us[] = {10, 1000};
    for (unsigned p = 0; p < 3; p++)
        for (unsigned w = 0; w < 2; w++)
            for (unsigned others = 0; others < 2; others++) {
                kind.work_ns = works_us[w] * US;
                machine_begin(1);
                add_body(0, own_launch, percents[p]);
                add(1, &KERNELS, 100 - percents[p]);
                together(1 + others);
                double got = tenant_got(&tenants[1], 1, RUN_S);
                printf("%u us at %u%s: %u rounds, the longest %.1f ms; the other %.1f\n", (unsigned)works_us[w],
                       percents[p], others > 0 ? " beside kernels" : "", (unsigned)tenants[0].steps,
                       (double)longest_ns[0] / (double)MS, got);
                /* Two kernels of a millisecond are 9 % of 22 ms: what a 10 owes is paid within one round now and then,
                 * and of thirty machines the longest took 30 to 440 ms. */
                bool needs_less = kind.work_ns < MS || percents[p] > 10;
                EXPECT(true, tenants[0].steps > 100);
                EXPECT(true, longest_ns[0] <= (needs_less ? (others > 0 ? 60 : 42) : 500) * MS);
                machine_end();
            }
}

TEST(a_stream_that_follows_one_that_stands_costs_nothing_either)
{
    kind.work_ns = 10 * US;
    for (unsigned percent = 10; percent <= 50; percent += 40) {
        double free_steps = steps_of(follow, 100), steps = steps_of(follow, percent);
        printf("at %u: %.3f of the time\n", percent, free_steps / steps);
        EXPECT(true, free_steps <= 1.1 * steps);
    }
}

TEST(two_processes_that_wait_for_each_other_go_on)
{
    static const unsigned percents[] = {10, 50, 99};
    for (unsigned p = 0; p < 3; p++)
        for (unsigned others = 0; others < 2; others++) {
            kind.work_ns = MS;
            machine_begin(1);
            add_body(0, exchange, percents[p]);
            add_body(1, exchange, percents[p])->account = &accounts[0];
            add(2, &KERNELS, 100 - percents[p]);
            together(2 + others);
            printf("%u%s: %u exchanges, the longest %.1f ms\n", percents[p], others > 0 ? " beside kernels" : "",
                   (unsigned)tenants[0].steps, (double)longest_ns[0] / (double)MS);
            EXPECT(true, tenants[0].steps > 10 * percents[p]);
            machine_end();
        }
}

TEST(work_that_is_let_go_behind_a_wait_is_charged)
{
    for (unsigned percent = 10; percent <= 50; percent += 20)
        for (unsigned others = 0; others < 2; others++) {
            kind.work_ns = 20 * MS;
            machine_begin(1);
            add_body(0, hoarder, percent);
            add(1, &KERNELS, 100 - percent);
            together(1 + others);
            double got = tenant_got(&tenants[0], 1, RUN_S), other = tenant_got(&tenants[1], 1, RUN_S);
            printf("%.1f of %u%s %.1f\n", got, percent, others > 0 ? " beside" : "", other);
            EXPECT(true, got <= percent + 3);
            EXPECT(true, others == 0 || other >= 100 - percent - 3);
            machine_end();
        }
}
