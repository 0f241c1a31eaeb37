/* The processes of one grant, in virtual time. */
#include "machine/programs.h"

/* Without a share the driver goes over from one to the next every 2 ms, which takes them 7 % of the card. */
TEST(processes_of_a_grant_get_their_share_of_what_they_have_alone)
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
        machine_begin(1);
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
TEST(processes_of_a_grant_have_their_slices_one_after_the_other)
{
    static const struct tenant SERVER = {.kernel_ns = 500 * US, .host_ns = 3 * US, .batch = 8, .in_flight = 8};
    static const unsigned percents[] = {20, 50, 90};
    enum { PROCESSES = 4 };
    for (unsigned p = 0; p < 3; p++)
        for (unsigned others = 0; others < 2; others++) {
            machine_begin(1);
            machine_poll(0); /* who looks late, as under a sanitizer, loses races */
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
            EXPECT(true, longest_ms < 300 + 5000.0 / percents[p]); /* or whoever wins a race: 290 to 1330 */
            EXPECT(true, least > 0.75 * most); /* their first seconds are held at moments of their own: 0.77 to 0.96 */
            machine_end();
        }
}

TEST(a_process_that_is_stopped_while_it_waits_costs_its_grant_little)
{
    static const unsigned percents[] = {50, 90};
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(1);
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

/* It keeps the grant's lead, by a lock that it has as long as it lives. */
TEST(a_process_that_is_stopped_in_its_time_slice_keeps_its_siblings_for_half_a_second_at_most)
{
    begin();
    for (unsigned t = 0; t < 2; t++) {
        add(t, &KERNELS, 50)->account = &accounts[0];
        tenant_start(&tenants[t]);
    }
    EXPECT(true, machine_run(2 * SECOND));
    while (!tenant_runs(&tenants[0]))
        EXPECT(true, machine_run(MS / 2));
    tenant_stop(&tenants[0]);
    uint64_t launched = tenants[1].launched;
    EXPECT(true, machine_run(500 * MS));
    printf("%lu launches\n", (unsigned long)(tenants[1].launched - launched));
    EXPECT(true, tenants[1].launched > launched);
    machine_end();
}

TEST(processes_of_a_grant_share_what_is_lent_to_it)
{
    enum { PROCESSES = 4 };
    static const unsigned percents[] = {1, 50};
    for (unsigned p = 0; p < 2; p++) {
        machine_begin(1);
        for (unsigned t = 0; t < PROCESSES; t++) {
            add(t, &KERNELS, percents[p])->account = &accounts[0];
            tenants[t].terms.policy = HETERO_POLICY_ELASTIC;
        }
        together(PROCESSES);
        double got = 0;
        for (unsigned t = 0; t < PROCESSES; t++) {
            printf("%.2f ", tenant_got(&tenants[t], 2, RUN_S));
            EXPECT_NEAR(100.0 / PROCESSES, 3, tenant_got(&tenants[t], 2, RUN_S)); /* of 36, one had 27.5 */
            got += tenant_got(&tenants[t], 2, RUN_S);
        }
        printf("of a card that nobody else wants\n");
        EXPECT(true, got > 93); /* as much as when the driver goes over from one to the other */
        machine_end();
    }
}

static struct tenant *add_served(unsigned number, const struct tenant *like, unsigned percent, unsigned grant)
{
    struct tenant *tenant = add(number, like, percent);
    tenant->terms.flags = HETERO_FLAG_SERVICE;
    tenant->account = &accounts[grant];
    return tenant;
}

/* Four processes whose kernels leave room for each other: where a service runs them at the same time, a time slice of
 * their grant is for all of them. */
TEST(processes_of_a_grant_are_in_its_time_slice_together_where_a_service_runs_them)
{
    static const unsigned percents[] = {30, 60};
    enum { PROCESSES = 4 };
    for (unsigned p = 0; p < 2; p++)
        for (unsigned others = p; others < 2; others++) {
            begin();
            machine_serve();
            for (unsigned t = 0; t < PROCESSES; t++)
                add_served(t, &KERNELS, percents[p], 0);
            add_served(PROCESSES, &KERNELS, 40, PROCESSES);
            together(PROCESSES + others);
            unsigned beside = 0;
            for (unsigned look = 0; others > 0 && look < 10000; look++) {
                EXPECT(true, machine_run(100 * US));
                for (unsigned t = 0; tenant_runs(&tenants[PROCESSES]) && t < PROCESSES; t++)
                    beside += tenants[t].asked_ns > tenants[t].done_ns;
            }
            EXPECT(true, beside < 100); /* of 10,000: who comes after them waits for all that they have in flight */
            for (unsigned t = 0; t < PROCESSES + others; t++)
                printf("%.2f ", tenant_got(&tenants[t], 2, RUN_S));
            printf("of %u%s\n", percents[p], others > 0 ? ", and of 40" : "");
            for (unsigned t = 0; t < PROCESSES; t++)
                EXPECT_NEAR(percents[p], 2, tenant_got(&tenants[t], 2, RUN_S)); /* 58.5 of 60 where all is given */
            if (others > 0)
                EXPECT_NEAR(40, 1, tenant_got(&tenants[PROCESSES], 2, RUN_S));
            machine_end();
        }
}

/* Whoever has the time slice of the grant is stopped for a while, or killed: its siblings go on, and not for nothing.
 */
TEST(a_process_that_goes_while_others_are_in_its_time_slice_costs_nobody_much)
{
    enum { PROCESSES = 3 };
    for (unsigned kills = 0; kills < 2; kills++) {
        uint64_t done_ns[PROCESSES] = {0};
        unsigned events = 0;
        begin();
        machine_serve();
        for (unsigned t = 0; t < PROCESSES; t++)
            tenant_start(add_served(t, &KERNELS, 30, 0));
        tenant_start(add_served(PROCESSES, &KERNELS, 60, PROCESSES));
        while (machine_now() < (RUN_S + 1) * SECOND) {
            EXPECT(true, machine_run(170 * MS));
            unsigned t = 0, looks = 0;
            while (looks++ < 4000 && !tenants[t].governor->time_slice.is_ours) {
                EXPECT(true, machine_run(50 * US));
                t = (t + 1) % PROCESSES;
            }
            events++;
            if (kills > 0) {
                done_ns[t] += tenants[t].done_ns;
                tenant_kill(&tenants[t]);
                tenant_start(&tenants[t]);
            } else {
                tenant_stop(&tenants[t]);
                EXPECT(true, machine_run(400 * MS));
                tenant_continue(&tenants[t]);
            }
        }
        printf("%u %s:", events, kills > 0 ? "kills" : "stops");
        for (unsigned t = 0; t < PROCESSES; t++) {
            double got = 100 * (double)(done_ns[t] + tenants[t].done_ns) / (RUN_S * SECOND);
            printf(" %.2f", got);
            EXPECT(true, got >= 25);
            EXPECT(true, kills == 0 || got <= 32); /* what runs beside one that is stopped is charged for a part */
        }
        printf(" of 30, beside %.2f of 60\n", tenant_got(&tenants[PROCESSES], 3, RUN_S));
        EXPECT(true, tenant_got(&tenants[PROCESSES], 3, RUN_S) >= 58);
        machine_end();
    }
}

/* Each with work in flight, which nobody counts as done, and that a page still says when they are gone. */
TEST(processes_of_a_grant_that_are_killed_and_come_anew_lower_nobodys_charge)
{
    uint64_t done_ns = 0;
    unsigned kills = 0;
    begin();
    for (unsigned t = 0; t < 3; t++)
        add(t, &KERNELS, 20)->account = &accounts[0];
    add(3, &KERNELS, 60);
    for (unsigned t = 0; t < 4; t++)
        tenant_start(&tenants[t]);
    while (machine_now() < (RUN_S + 1) * SECOND) {
        EXPECT(true, machine_run(17 * MS));
        struct tenant *killed = &tenants[kills++ % 3];
        done_ns += killed->done_ns;
        tenant_kill(killed);
        tenant_start(killed);
    }
    double got = 100 * (double)done_ns / (RUN_S * SECOND);
    printf("%u kills: %.2f of 20, beside %.2f of 60\n", kills, got, tenant_got(&tenants[3], 3, RUN_S));
    EXPECT_NEAR(20, 1.5, got);
    EXPECT_NEAR(60, 2.5, tenant_got(&tenants[3], 3, RUN_S)); /* a death is asked for 5 ms later */
    machine_end();
}

/* Its siblings write the account that they share, as any of them may: by a lock they know that it owes. */
TEST(who_owes_much_with_work_in_flight_keeps_its_siblings_whatever_they_write)
{
    static const struct tenant ENDLESS = {.kernel_ns = 3600 * SECOND, .host_ns = 3 * US, .in_flight = 1};
    begin();
    add(0, &ENDLESS, 10);
    add(1, &ENDLESS, 10)->account = &accounts[0];
    add(2, &KERNELS, 60);
    tenant_start(&tenants[2]);
    tenant_start(&tenants[0]);
    EXPECT(true, machine_run(4 * SECOND));
    tenant_start(&tenants[1]);
    for (unsigned step = 0; step < 6000; step++) {
        atomic_store(&accounts[0].balance_ns, 900 * (int64_t)MS);
        EXPECT(true, machine_run(MS));
    }
    printf("%lu launches, and %lu of the sibling\n", (unsigned long)tenants[0].launched,
           (unsigned long)tenants[1].launched);
    EXPECT(true, tenants[0].asked_ns > 0);
    EXPECT(true, tenants[1].asked_ns == 0);
    tenant_kill(&tenants[0]); /* its lock goes with it */
    EXPECT(true, machine_run(100 * MS));
    EXPECT(true, tenants[1].asked_ns > 0);
    machine_end();
}

/* Alone it goes on after a second: nobody else wants what it would take. */
TEST(who_begins_with_a_debt_waits_for_it_while_others_want_the_card)
{
    for (unsigned others = 0; others < 2; others++) {
        begin();
        add(0, &KERNELS, 60);
        add(1, &KERNELS, 10);
        if (others > 0)
            tenant_start(&tenants[0]);
        EXPECT(true, machine_run(SECOND));
        tenants[1].terms.owes_until_ns = machine_now() + 3 * SECOND;
        tenant_start(&tenants[1]);
        EXPECT(true, machine_run(2900 * MS));
        uint64_t waited = tenants[1].launched;
        EXPECT(true, machine_run(7100 * MS));
        printf("%lu launches in the first 2.9 s, then %.2f of 10\n", (unsigned long)waited,
               tenant_got(&tenants[1], 5, 11));
        EXPECT(others == 0, waited > 0);
        EXPECT_NEAR(10, 1, tenant_got(&tenants[1], 5, 11));
        machine_end();
    }
}

/* What was used alone is owed to nobody; beside another it is, until it is paid. */
TEST(a_grant_owes_what_it_took_beyond_its_share_while_another_had_work)
{
    static const struct tenant LONG = {
        .kernel_ns = 4 * SECOND, .host_ns = 3 * US, .in_flight = 1, .rest_ns = 3600 * SECOND, .batch = 1};
    for (unsigned others = 0; others < 2; others++) {
        begin();
        add(0, &LONG, 1);
        add(1, &KERNELS, 60);
        tenant_start(&tenants[0]);
        if (others > 0)
            tenant_start(&tenants[1]);
        EXPECT(true, machine_run(9 * SECOND));
        double owed = (double)accounts[0].owed_ns / (double)SECOND, debt = -(double)accounts[0].balance_ns / SECOND;
        printf("owes %.2f s of %.2f s\n", owed, debt);
        EXPECT(true, debt > 3.5);
        EXPECT_NEAR(others > 0 ? debt : 0, 0.2, owed);
        machine_end();
    }
}
