/* What tenants of one card get beside each other: whole governors, their time slices and budgets, in virtual time. */
#include "machine/programs.h"

TEST(halves_of_a_card_are_halves)
{
    pair(&KERNELS, 50, &KERNELS, 50, 1);
}

TEST(a_decoder_beside_graphs_has_its_half)
{
    pair(&DECODER, 50, &GRAPHS, 50, 1);
}

TEST(long_kernels_beside_short_ones_take_no_more_than_their_half)
{
    pair(&LONG_KERNELS, 50, &KERNELS, 50, 1.5);
}

TEST(a_tenth_beside_nine_tenths_is_a_tenth)
{
    pair(&KERNELS, 10, &GRAPHS, 90, 1);
}

TEST(sixty_beside_thirty_leaves_slack)
{
    pair(&DECODER, 60, &KERNELS, 30, 1);
}

TEST(four_quarters_are_quarters)
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

/* How long one that comes anew waits for what `borrower` was lent, at most. */
static double back_after_ms(const struct tenant *borrower)
{
    begin();
    double native = alone(borrower), sum_ms = 0, most_ms = 0;
    for (unsigned moment = 0; moment < 50; moment++) {
        machine_begin(1);
        add(0, borrower, 50)->terms.policy = HETERO_POLICY_ELASTIC;
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
    return most_ms;
}

/* Ten milliseconds, and what the borrower may have in flight: three, or one kernel. */
TEST(what_was_lent_is_back_within_10_ms_and_what_is_in_flight)
{
    EXPECT(true, back_after_ms(&KERNELS) <= 10 + 3);
    EXPECT(true, back_after_ms(&LONG_KERNELS) <= 10 + 13);
    struct tenant shorter = LONG_KERNELS;
    shorter.kernel_ns = 5 * MS;
    EXPECT(true, back_after_ms(&shorter) <= 10 + 5);
}

/* A borrower waits beside a neighbour that works in bursts, and ten milliseconds behind the end of a burst it has the
 * card: of the next ten nobody else has any. */
TEST(what_a_neighbour_leaves_is_lent_within_10_ms)
{
    const struct tenant bursts = {
        .kernel_ns = 500 * US, .host_ns = 3 * US, .batch = 150, .in_flight = 8, .rest_ns = 60 * MS};
    begin();
    struct tenant *borrower = add(0, &KERNELS, 10), *neighbour = add(1, &bursts, 90);
    borrower->terms.policy = HETERO_POLICY_ELASTIC;
    tenant_start(borrower);
    tenant_start(neighbour);
    EXPECT(true, machine_run(2 * SECOND));
    unsigned ends = 0;
    double least_ms = 10;
    while (machine_now() < 12 * SECOND) {
        uint64_t batches = neighbour->batches;
        EXPECT(true, machine_run(MS / 4));
        if (neighbour->batches == batches)
            continue;
        EXPECT(true, machine_run(10 * MS));
        uint64_t done_ns = borrower->done_ns;
        EXPECT(true, machine_run(10 * MS));
        double ms = (double)(borrower->done_ns - done_ns) / (double)MS;
        least_ms = ms < least_ms ? ms : least_ms;
        ends++;
    }
    printf("%u bursts: of the ten milliseconds behind the first ten the borrower had %.2f at least\n", ends, least_ms);
    EXPECT(true, ends >= 20);
    EXPECT(true, least_ms >= 9);
    machine_end();
}

TEST(a_tenant_that_says_that_it_is_owed_most_costs_its_neighbours_a_few_points_and_no_more)
{
    static const unsigned percents[][2] = {{50, 50}, {10, 90}, {90, 10}, {60, 30}};
    for (unsigned p = 0; p < 4; p++) {
        machine_begin(1);
        add(0, &KERNELS, percents[p][0])->lies = true;
        add(1, &GRAPHS, percents[p][1]);
        together(2);
        printf("%.2f of %u beside one that lies\n", tenant_got(&tenants[1], 4, RUN_S), percents[p][1]);
        EXPECT_NEAR(percents[p][0], 3.5, tenant_got(&tenants[0], 4, RUN_S));
        EXPECT_NEAR(percents[p][1], 3.5, tenant_got(&tenants[1], 4, RUN_S));
        machine_end();
    }
}

/* The page is the tenant's to write; whoever believed it would charge a fifth. */
TEST(a_tenant_that_says_that_processes_of_its_own_are_busy_has_its_share)
{
    for (unsigned count = 1; count <= 2; count++) {
        begin();
        struct tenant *liar = add(0, &KERNELS, 30);
        add(1, &KERNELS, 60);
        for (unsigned t = 0; t < count; t++)
            tenant_start(&tenants[t]);
        while (machine_now() < 30 * SECOND) {
            struct hetero_page *page = liar->governor == NULL ? NULL : tenant_page(liar);
            EXPECT(true, machine_run(2 * MS));
            if (page != NULL) {
                page->busy_process_count = 5;
                page->busy_beat++;
            }
        }
        printf("%.2f of 30, after what buys it a second\n", tenant_got(liar, 20, 30));
        EXPECT_NEAR(30, 1, tenant_got(liar, 20, 30));
        EXPECT(true, count == 1 || tenant_got(&tenants[1], 20, 30) >= 59);
        machine_end();
    }
}

/* What a tenant's page says for so long, whatever its governor wrote there. */
static void forge(const struct tenant *liar, enum page_state state, unsigned busy, unsigned seconds)
{
    struct hetero_page *page = tenant_page(liar);
    tenant_lock_page(liar);
    for (uint64_t until = machine_now() + seconds * SECOND; machine_now() < until;) {
        EXPECT(true, machine_run(500 * US));
        page->state = state;
        page->look_beat++;
        page->busy_process_count = busy;
        page->busy_beat += busy > 0;
    }
}

/* One of high priority runs beside it, too. */
TEST(a_tenant_that_never_gives_its_time_slice_up_costs_its_neighbour_its_own_share_at_most)
{
    static const uint32_t priorities[] = {HETERO_PRIORITY_LOW, HETERO_PRIORITY_HIGH};
    for (unsigned p = 0; p < 2; p++)
        for (unsigned state = PAGE_ENTERS; state <= PAGE_ENDS; state++) {
            begin();
            add(0, &KERNELS, 10)->terms.priority = priorities[p];
            add(1, &KERNELS, 80);
            tenant_start(&tenants[0]);
            tenant_start(&tenants[1]);
            EXPECT(true, machine_run(100 * MS));
            forge(&tenants[0], (enum page_state)state, 0, 20);
            printf("%.2f of 80 beside %.2f of 10\n", tenant_got(&tenants[1], 10, 20), tenant_got(&tenants[0], 10, 20));
            EXPECT(true, tenant_got(&tenants[1], 10, 20) >= (p == 0 ? 69 : 60));
            EXPECT(true, tenant_got(&tenants[0], 10, 20) <= (p == 0 ? 11 : 15));
            machine_end();
        }
}

/* Tenant 0 launches nothing and writes what it likes: an accomplice of tenant 1, beside an honest one. */
static void begin_with_an_idle_accomplice(void)
{
    begin();
    add(0, &KERNELS, 10)->from_ns = 3600 * SECOND;
    add(1, &KERNELS, 10);
    add(2, &KERNELS, 80);
    for (unsigned t = 0; t < 3; t++)
        tenant_start(&tenants[t]);
    EXPECT(true, machine_run(100 * MS));
}

/* `busy` lowers the charge of all co-tenants, and one of them is an accomplice. */
TEST(a_tenant_that_says_that_it_is_always_busy_buys_another_no_more_than_its_own_share)
{
    begin_with_an_idle_accomplice();
    forge(&tenants[0], PAGE_IDLE, 4, 40);
    printf("%.2f of 10 and %.2f of 80\n", tenant_got(&tenants[1], 20, 40), tenant_got(&tenants[2], 20, 40));
    EXPECT(true, tenant_got(&tenants[1], 20, 40) <= 20);
    EXPECT(true, tenant_got(&tenants[2], 20, 40) >= 79);
    machine_end();
}

/* Nobody was slower meanwhile than he is afterwards, so nothing is given back. */
TEST(a_tenant_that_said_that_it_was_busy_for_long_buys_another_nothing_afterwards)
{
    begin();
    add(0, &KERNELS, 10)->from_ns = 3600 * SECOND;
    add(1, &KERNELS, 50);
    tenant_start(&tenants[0]);
    tenant_start(&tenants[1]);
    EXPECT(true, machine_run(100 * MS));
    forge(&tenants[0], PAGE_IDLE, 4, 40);
    EXPECT(true, machine_run(20 * SECOND));
    printf("%.2f and then %.2f of 50\n", tenant_got(&tenants[1], 20, 40), tenant_got(&tenants[1], 42, 60));
    EXPECT_NEAR(50, 1, tenant_got(&tenants[1], 42, 60));
    machine_end();
}

/* Nor what it says that it used without a time slice. Five quarters of its share are believed, and 56 % more are taken
 * as what the driver loses by it: 19.5 % of all time slices are charged to nobody, so that a share of 10 is 12.4. */
TEST(a_tenant_that_says_that_it_used_much_buys_another_no_more_than_its_own_share)
{
    begin_with_an_idle_accomplice();
    machine_age_clocks(0);
    while (machine_now() < 20 * SECOND) {
        EXPECT(true, machine_run(500 * US));
        tenant_page(&tenants[0])->light_ns += 500 * US;
    }
    printf("%.2f of 10 and %.2f of 80\n", tenant_got(&tenants[1], 5, 20), tenant_got(&tenants[2], 5, 20));
    EXPECT(true, tenant_got(&tenants[1], 5, 20) <= 12.5);
    EXPECT(true, tenant_got(&tenants[2], 5, 20) >= 79);
    machine_end();
}

/* One kernel of 20 us, then nothing for some milliseconds, over and over: it gives each time slice up a millisecond
 * after its work was done. */
TEST(a_time_slice_that_is_held_idle_at_its_end_is_charged_while_another_waits)
{
    for (uint64_t rest_ns = 4 * MS; rest_ns <= 16 * MS; rest_ns *= 2) {
        begin();
        add(0, &(struct tenant){.kernel_ns = 20 * US, .host_ns = 5 * US, .in_flight = 1, .batch = 1}, 5)->rest_ns =
            rest_ns;
        add(1, &KERNELS, 95);
        together(2);
        printf("%.2f of 95\n", tenant_got(&tenants[1], 2, RUN_S));
        EXPECT_NEAR(95, 1, tenant_got(&tenants[1], 2, RUN_S));
        machine_end();
    }
}

/* One of four looks at a file takes it from 5 us to 2 ms, between what is seen and what is said. */
TEST(tenants_that_lose_their_processor_never_have_the_slice_together)
{
    uint64_t time_slices = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        machine_begin(seed);
        machine_preempt(4);
        for (unsigned t = 0; t < 6; t++)
            tenant_start(add(t, &KERNELS, 15));
        EXPECT(true, machine_run(3 * SECOND));
        for (unsigned t = 0; t < 6; t++) {
            EXPECT(0, tenants[t].beside);
            time_slices += tenants[t].time_slices;
        }
        machine_end();
    }
    printf("%lu time slices\n", (unsigned long)time_slices);
    EXPECT(true, time_slices > 3000);
}

TEST(a_thread_that_cannot_be_started_is_tried_again)
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
TEST(tenants_whose_clocks_disagree_have_their_shares)
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
