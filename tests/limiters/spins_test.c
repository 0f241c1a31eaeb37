/* Programs with kernels that spin until another launch of their grant is made, in virtual time: the card has no sign of
 * that, and their own charge would keep that launch at the closed gate for ever. */
#include "machine/programs.h"

static uint64_t memory_words[TENANTS];
static uint64_t longest_ns[TENANTS];
static uint64_t kernel_ns;
static bool same_stream_twice;

static void note_launch(const struct tenant *tenant, uint64_t since_ns)
{
    uint64_t *longest = &longest_ns[tenant - tenants], took_ns = machine_now() - since_ns;
    *longest = took_ns > *longest ? took_ns : *longest;
}

/* A kernel spins for a word that the program writes after its launch into the other stream, or into the same. */
static void own_launch(struct tenant *tenant)
{
    uint64_t *word = &memory_words[tenant - tenants];
    for (tenant->steps = 1;; tenant->steps++) {
        tenant_spin_word(tenant, 0, word, tenant->steps, kernel_ns);
        tenant_sleep(5 * MS);
        uint64_t since_ns = machine_now();
        tenant_launch(tenant, !same_stream_twice, kernel_ns);
        note_launch(tenant, since_ns);
        tenant_write(word, tenant->steps);
        tenant_synchronise(tenant);
    }
}

/* A kernel spins until the program has made four small copies, one after the other. */
static void proxied(struct tenant *tenant)
{
    uint64_t *word = &memory_words[tenant - tenants];
    for (tenant->steps = 1;; tenant->steps++) {
        tenant_spin_word(tenant, 0, word, 4 * tenant->steps, kernel_ns);
        for (unsigned copy = 1; copy <= 4; copy++) {
            tenant_sleep(MS);
            uint64_t since_ns = machine_now();
            tenant_copy(tenant, 1, 10 * US);
            note_launch(tenant, since_ns);
            tenant_wait(tenant, 1);
            tenant_write(word, 4 * tenant->steps - 4 + copy);
        }
        tenant_synchronise(tenant);
    }
}

/* Each of two processes launches a kernel that spins until the other's is launched, too. */
static void exchange(struct tenant *tenant)
{
    unsigned rank = (unsigned)(tenant - tenants);
    for (tenant->steps = 1;; tenant->steps++) {
        uint64_t since_ns = machine_now();
        tenant_spin_word(tenant, 0, &memory_words[1 - rank], tenant->steps, kernel_ns);
        tenant_write(&memory_words[rank], tenant->steps);
        tenant_synchronise(tenant);
        note_launch(tenant, since_ns);
    }
}

/* Kernels in two streams in turns, none of which waits for anything. */
static void two_streams(struct tenant *tenant)
{
    for (tenant->steps = 0;; tenant->steps++) {
        tenant_launch(tenant, 0, kernel_ns);
        tenant_launch(tenant, 1, kernel_ns);
    }
}

static struct tenant *add_body(unsigned number, void (*body)(struct tenant *tenant), unsigned percent)
{
    struct tenant *tenant = add(number, &KERNELS, percent);
    tenant->body = body;
    memory_words[number] = longest_ns[number] = 0;
    return tenant;
}

TEST(a_launch_that_a_kernel_spins_for_is_made_in_fifty_milliseconds)
{
    static const unsigned percents[] = {10, 50, 99};
    kernel_ns = 10 * US;
    for (unsigned seed = 1; seed <= 18; seed++) {
        unsigned p = seed % 3, others = seed / 3 % 2;
        machine_begin(seed);
        add_body(0, own_launch, percents[p]);
        add(1, &KERNELS, 100 - percents[p]);
        together(1 + others);
        double got = tenant_got(&tenants[1], 1, RUN_S);
        printf("at %u%s: %u rounds, the longest launch %.1f ms; the other %.1f\n", percents[p],
               others > 0 ? " beside kernels" : "", (unsigned)tenants[0].steps, (double)longest_ns[0] / (double)MS,
               got);
        EXPECT(true, tenants[0].steps > percents[p]);
        EXPECT(true, longest_ns[0] <= (others > 0 ? 110 : 52) * MS);
        EXPECT(true, others == 0 || got >= 97.0 - percents[p]);
        machine_end();
    }
}

TEST(small_copies_that_a_kernel_spins_for_are_made_at_once)
{
    static const unsigned percents[] = {10, 50, 99};
    kernel_ns = 10 * US;
    for (unsigned p = 0; p < 3; p++)
        for (unsigned others = 0; others < 2; others++) {
            machine_begin(1);
            add_body(0, proxied, percents[p]);
            add(1, &KERNELS, 100 - percents[p]);
            together(1 + others);
            double got = tenant_got(&tenants[1], 1, RUN_S);
            printf("at %u%s: %u rounds, the longest copy %.1f ms; the other %.1f\n", percents[p],
                   others > 0 ? " beside kernels" : "", (unsigned)tenants[0].steps, (double)longest_ns[0] / (double)MS,
                   got);
            EXPECT(true, tenants[0].steps > 10 * percents[p]);
            EXPECT(true, longest_ns[0] <= (others > 0 ? 12 : 5) * MS);
            EXPECT(true, others == 0 || got >= 97.0 - percents[p]);
            machine_end();
        }
}

TEST(what_the_host_does_after_a_launch_into_the_stream_of_the_kernel_is_done_in_half_a_minute)
{
    kernel_ns = 10 * US;
    same_stream_twice = true;
    for (unsigned percent = 10; percent <= 50; percent += 40) {
        machine_begin(1);
        add_body(0, own_launch, percent);
        together(1);
        for (unsigned part = 0; part < 3; part++)
            EXPECT(true, machine_run(8 * SECOND));
        printf("at %u: %u rounds, the longest launch %.1f ms\n", percent, (unsigned)tenants[0].steps,
               (double)longest_ns[0] / (double)MS);
        EXPECT(true, tenants[0].steps > 1);
        EXPECT(true, longest_ns[0] <= 31 * SECOND);
        machine_end();
    }
    same_stream_twice = false;
}

TEST(two_processes_whose_kernels_spin_for_each_other_go_on)
{
    static const unsigned percents[] = {10, 50, 99};
    kernel_ns = MS;
    for (unsigned p = 0; p < 3; p++)
        for (unsigned others = 0; others < 2; others++) {
            machine_begin(1);
            add_body(0, exchange, percents[p]);
            add_body(1, exchange, percents[p])->account = &accounts[0];
            add(2, &KERNELS, 100 - percents[p]);
            together(2 + others);
            printf("%u%s: %u exchanges, the longest %.1f ms; the other %.1f\n", percents[p],
                   others > 0 ? " beside kernels" : "", (unsigned)tenants[0].steps, (double)longest_ns[0] / (double)MS,
                   tenant_got(&tenants[2], 1, RUN_S));
            EXPECT(true, tenants[0].steps >= percents[p] / 2);
            machine_end();
        }
}

TEST(kernels_in_two_streams_that_spin_for_nothing_have_their_share)
{
    static const uint64_t lengths_ms[] = {30, 200, 800};
    for (unsigned l = 0; l < 3; l++)
        for (unsigned percent = 10; percent <= 30; percent += 20) {
            kernel_ns = lengths_ms[l] * MS;
            machine_begin(1);
            add_body(0, two_streams, percent);
            add(1, &KERNELS, 60);
            tenant_start(&tenants[0]);
            tenant_start(&tenants[1]);
            for (unsigned part = 0; part < 6; part++)
                EXPECT(true, machine_run(10 * SECOND));
            double got = tenant_got(&tenants[0], 2, 60), other = tenant_got(&tenants[1], 2, 60);
            printf("kernels of %u ms: %.1f of %u beside %.1f of 60\n", (unsigned)lengths_ms[l], got, percent, other);
            EXPECT(true, got <= percent + 3);
            EXPECT(true, other >= 57);
            machine_end();
        }
}
