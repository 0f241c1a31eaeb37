/* The budget and the governor with a virtual clock and a simulated device, and the governor's thread in real time. */
#include "check.h"
#include "h200.h"

#include "../../limiters/timeshare/budget.h"
#include "../../limiters/timeshare/governor.h"
#include "../../limiters/timeshare/pace.h"

#include <sys/wait.h>
#include <time.h>

/* ------------------------------------------------------------------------------------------------------ the budget */

static void a_balance_grows_at_the_share_and_no_further_than_a_slice_at_rest(void)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 3000, 0);
    EXPECT(3 * MS, budget_balance(&account, 1000 * MS, 1010 * MS, 3000));
    EXPECT(BUDGET_SLICE_NS, budget_balance(&account, 5000 * MS, 5000 * MS, 3000));
}

static void one_that_was_kept_waiting_keeps_what_it_is_owed(void)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 5000, 0);
    EXPECT(50 * MS, budget_balance(&account, 1000 * MS, 1100 * MS, 5000));
    EXPECT(BUDGET_ARREARS_NS, budget_balance(&account, 1000 * MS, 9000 * MS, 5000));
}

static void debt_is_carried_in_full(void)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 2500, 0);
    budget_settle(&account, 1000 * MS, 1100 * MS, 2500, 100 * MS);
    EXPECT(-75 * (int64_t)MS, account.balance_ns);
    EXPECT(100 * MS, account.gpu_ns);
    uint64_t wait = budget_wait(account.balance_ns, 2500);
    EXPECT_NEAR(300e6, 10, (double)wait);
    EXPECT(true, budget_balance(&account, 1100 * MS, 1100 * MS + wait, 2500) >= 0);
}

/* --------------------------------------------------------------------------------------------------- the governor */

/* A device that runs launches one after the other, a program that makes them, and time that passes only in pause(). */
static struct {
    uint64_t clock;
    uint64_t kernel_ns;  /* how long the device takes for a launch */
    uint64_t host_ns;    /* how long the program takes between launches */
    uint64_t rest_ns;    /* after a synchronised launch, how long the program does something else; 0: never waits */
    uint64_t in_flight;  /* launches the program keeps queued */
    uint64_t free_at;    /* when the device has done everything */
    uint64_t host_until; /* when the program is ready to launch again */
    uint64_t seen_ns;    /* how much later than its work a fence has passed */
    uint64_t launched, busy_ns, fences;
    struct governor *governor;
    bool inside;
} sim;

static uint64_t sim_now(void)
{
    return sim.clock;
}

static void program(void)
{
    if (sim.inside || sim.clock < sim.host_until)
        return;
    if (sim.rest_ns == 0 && sim.free_at > sim.clock + (sim.in_flight - 1) * sim.kernel_ns)
        return;
    atomic_store(&sim.governor->gate.waiting, 1);
    if (atomic_load(&sim.governor->gate.state) == GATE_CLOSED)
        return;
    sim.inside = true;
    EXPECT(true, gate_enter(&sim.governor->gate));
    sim.free_at = (sim.free_at > sim.clock ? sim.free_at : sim.clock) + sim.kernel_ns;
    sim.busy_ns += sim.kernel_ns;
    sim.launched++;
    struct stream_key stream = {.stream = &sim};
    gate_leave(&sim.governor->gate, &stream);
    sim.host_until = sim.clock + sim.host_ns;
    if (sim.rest_ns > 0)
        sim.host_until = sim.free_at + sim.rest_ns;
    atomic_store(&sim.governor->gate.waiting, 0);
    sim.inside = false;
}

static void sim_pause(uint64_t ns)
{
    for (uint64_t until = sim.clock + ns; sim.clock < until;) {
        program();
        uint64_t step = until - sim.clock < 2 * US ? until - sim.clock : 2 * US;
        sim.clock += step;
    }
}

static void *sim_stream_context(void *stream)
{
    return stream;
}

static void *sim_make(void *context)
{
    return context == NULL ? NULL : calloc(1, sizeof(uint64_t));
}

static bool sim_set(void *fence, void *stream)
{
    EXPECT(true, stream == &sim);
    *(uint64_t *)fence = sim.free_at + sim.seen_ns;
    sim.fences++;
    return true;
}

static bool sim_passed(void *fence)
{
    return *(uint64_t *)fence <= sim.clock;
}

static void nothing(void)
{
}

static uint64_t sim_power_permille; /* what the device draws while busy, of what it may draw; 0: it will not say */

static const char *sim_name = "NVIDIA H200";

static bool sim_device_name(const char *uuid, char *name, size_t size)
{
    (void)uuid;
    snprintf(name, size, "%s", sim_name);
    return true;
}

static bool sim_power(const char *uuid, struct power_reading *reading)
{
    (void)uuid;
    static uint64_t last_clock, last_busy;
    double busy = sim.clock > last_clock ? (double)(sim.busy_ns - last_busy) / (double)(sim.clock - last_clock) : 0;
    last_clock = sim.clock;
    last_busy = sim.busy_ns;
    reading->limit_mw = 600000;
    reading->mean_mw = 100000 + (uint32_t)(busy * 500 * (double)sim_power_permille);
    reading->clock = 1024;
    reading->count = 0;
    return sim_power_permille > 0;
}

static const struct engine simulated = {
    .now = sim_now,
    .pause = sim_pause,
    .begin = nothing,
    .stream_context = sim_stream_context,
    .make = sim_make,
    .drop = free,
    .set = sim_set,
    .passed = sim_passed,
    .device_name = sim_device_name,
    .power = sim_power,
};

static struct hetero_grant_device terms;
static struct hetero_region_device account;
static bool forging; /* somebody writes to the account that much is owed */

static void govern(uint32_t core, uint64_t ns)
{
    usage_file();
    terms = (struct hetero_grant_device){.core = core, .policy = HETERO_POLICY_FIXED};
    sim.clock = 1000 * MS;
    sim.governor = governor_new(&simulated, &terms, &account, directory, 0);
    governor_begin(sim.governor);
    uint64_t end = sim.clock + ns;
    while (sim.clock < end) {
        program();
        if (atomic_load(&sim.governor->gate.waiting) == 0) {
            sim_pause(50 * US);
            continue;
        }
        if (atomic_load(&sim.governor->gate.traffic) == 0)
            sim.governor->account.asked_ns = sim.clock;
        if (forging)
            atomic_store(&account.balance_ns, INT64_MAX);
        governor_round(sim.governor);
    }
}

static void a_share_of_a_busy_device_is_kept_whatever_the_kernels_take(void)
{
    static const uint32_t cores[] = {100, 1000, 3000, 6000, 9500};
    static const uint64_t kernels[] = {5 * US, 100 * US, 1600 * US, 15 * MS};
    for (unsigned c = 0; c < sizeof cores / sizeof *cores; c++)
        for (unsigned k = 0; k < sizeof kernels / sizeof *kernels; k++) {
            pid_t child = fork();
            if (child == 0) {
                sim.kernel_ns = kernels[k];
                sim.host_ns = 2 * US;
                sim.in_flight = 1000;
                govern(cores[c], 6000 * MS);
                double share = (double)sim.busy_ns * 10000 / 6000e6;
                printf("core %u, %llu us: %.1f\n", cores[c], (unsigned long long)(kernels[k] / US), share / 100);
                /* The last time slice, with three kernels of 15 ms in flight, is a point of 6 s; a device kept waiting costs
                 * up to 3 % of the share. */
                EXPECT_NEAR((double)cores[c], 170 + cores[c] * 0.03, share);
                exit(0);
            }
            int status;
            waitpid(child, &status, 0);
            EXPECT(0, status);
        }
}

static void a_program_bound_by_its_own_thread_gets_its_share_of_the_launches(void)
{
    sim.kernel_ns = 5 * US;
    sim.rest_ns = 25 * US;
    govern(3000, 10000 * MS);
    double alone = 10000e6 / 30e3;
    EXPECT_NEAR(30.0, 2.0, 100 * (double)sim.launched / alone);
}

static unsigned stamped_late_ms = 4;
static double usual_rate, late_rate; /* launches a millisecond, in the first half of the looks and in the second */
static unsigned power_looks = 20, unwatched_ms; /* before the last look but one, the neighbour runs and nobody watches it */

/* Two tenants in time slices of changing length, one of which draws `own_mw` above idle, and what the charge rate of its time is
 * after some looks at samples as an H200 takes them: every 20 ms, through a filter, stamped some ms late and more. */
static double charge_rate_beside(double own_share, uint32_t own_mw, double others_share, uint32_t others_mw, bool samples,
                           uint32_t clock)
{
    struct power power;
    struct power_reading reading = {.mean_mw = IDLE_MW, .limit_mw = LIMIT_MW, .clock = clock};
    double shares[] = {own_share, others_share, 1 - own_share - others_share};
    uint64_t ms = 1000000, ends = ms;
    int whose = 2;
    double filtered = 0, mean = 0;
    power_begin(&power, power_model_of("NVIDIA H200"), ms * MS, &reading);
    for (unsigned look = 0; look < power_looks; look++) {
        unsigned unwatched = look == power_looks - 2 ? unwatched_ms : 0;
        reading.count = 0;
        reading.clock = look < 10 ? 1024 : clock;
        for (unsigned i = 0; i < 250 + unwatched; i++, ms++) {
            while (ms == ends) { /* ours, theirs, and whatever is left is nobody's */
                whose = (whose + 1) % 3;
                ends += (uint64_t)(shares[whose] * 20 * (0.5 + (double)(rand() % 1000) / 1000) + 0.5);
            }
            if (i < unwatched) {
                whose = 1;
                power_unwatched(&power, ms * MS);
            } else if (whose < 2) {
                power_ran(&power, ms * MS, (ms + 1) * MS, whose == 0);
            }
            double drawn = whose == 0 ? own_mw : whose == 1 ? others_mw : 0;
            mean += (drawn - mean) / 1000;
            uint64_t more_ns = ms % 20 == 7 && rand() % 4 == 0 ? 9 * MS : 0;
            h200_meter(&reading, &filtered, drawn, ms, stamped_late_ms * MS + more_ns + 300 * US);
        }
        reading.mean_mw = IDLE_MW + (uint32_t)mean;
        reading.count *= samples;
        power_look(&power, ms * MS, &reading, look < 10 ? usual_rate : late_rate);
    }
    return power.charge_rate / 1024.0;
}

static void time_on_a_card_at_its_power_limit_is_charged_more(void)
{
    /* Large products at 30 % of the time reach 36 % of the speed they have alone (one H200), whoever is beside. */
    EXPECT_NEAR(36.0 / 30, 0.02, charge_rate_beside(0.3, 848000, 0, 0, true, 1024));
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.3, 848000, 0, 0, false, 1024)); /* a mean that is late */
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.5, 848000, 0.4, 180000, true, 1024));
    EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.3, 848000, 0.6, 365000, true, 1024));
    for (stamped_late_ms = 0; stamped_late_ms <= 16; stamped_late_ms += 4)
        EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.45, 848000, 0.5, 20000, true, 1024));
    stamped_late_ms = 4;
    /* A unconstrained program is charged at unity, whoever is beside. */
    EXPECT_NEAR(1, 0, charge_rate_beside(0.3, 365000, 0, 0, true, 1024));
    EXPECT_NEAR(1, 0, charge_rate_beside(0.4, 180000, 0.5, 848000, true, 1024));
    EXPECT_NEAR(1, 0, charge_rate_beside(0.3, 365000, 0.6, 848000, true, 1024));
    /* Nor for what its neighbour's power limit does to its speed: as its launches tell, down to the 1.5th power of the clock or,
     * as here, to the clock at which it would draw all there is itself. */
    EXPECT_NEAR(0.95, 0.01, charge_rate_beside(0.3, 365000, 0.6, 848000, true, 924));
    static const double rates[][2] = {{10, 1}, {9.2, 0.92}, {5, 0.864}, {20, 1}};
    for (unsigned r = 0; r < 4; r++) {
        usual_rate = 10;
        late_rate = rates[r][0];
        EXPECT_NEAR(rates[r][1], 0.015, charge_rate_beside(0.3, 365000, 0.6, 848000, true, 924));
    }
    usual_rate = late_rate = 0;
    /* Two that reach the limit together would do so alone, at the same clocks. */
    for (uint32_t clock = 700; clock < 1024; clock += 100)
        EXPECT_NEAR(1, 0.035, charge_rate_beside(0.5, 560000, 0.5, 570000, true, clock));
    /* What a neighbour drew while nobody watched is not taken for ours. */
    power_looks = 2;
    for (unwatched_ms = 0; unwatched_ms <= 2000; unwatched_ms += 500) {
        EXPECT_NEAR(1, 0.01, charge_rate_beside(0.5, 365000, 0.4, 848000, true, 1024));
        EXPECT_NEAR(36.0 / 30, 0.05, charge_rate_beside(0.5, 848000, 0.4, 100000, true, 1024));
    }
    power_looks = 20;
    unwatched_ms = 0;
    /* Without samples nobody can tell, and both are charged for the mean. */
    double blended = charge_rate_beside(0.3, 365000, 0.6, 848000, false, 1024);
    EXPECT(true, blended > 1.02 && blended < 1.15);
}

static void a_power_limited_program_gets_its_share_of_its_speed_alone(void)
{
    sim.kernel_ns = 1600 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 8;
    sim_power_permille = 1500;
    govern(3000, 40000 * MS); /* in the first second nothing is known */
    EXPECT_NEAR(30.0 / power_slowdown(power_model_of("NVIDIA H200"), 1.5, 1), 0.7, (double)sim.busy_ns * 100 / 40000e6);
}

/* So many time slices, 5 to 25 ms long, in which nothing happens for so long and then a launch every 100 us, of which so many
 * come and stay away at random; what is not charged of the last. */
static uint64_t slices_of(struct pace *pace, unsigned slices, double lost_ms, double at_random)
{
    uint64_t waived = 0, rng = 1;
    *pace = (struct pace){0};
    for (unsigned slice = 0; slice < slices; slice++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
        double ms = 5 + (double)(rng >> 33) / 0x1p31 * 20, chance = (double)(rng >> 10 & 1023) / 511.5 - 1;
        waived = pace_end(pace, (uint64_t)(ms * 1e6), (uint32_t)((ms - lost_ms) * 10 * (1 + chance * at_random)));
    }
    return waived;
}

static double waived_us(unsigned slices, double lost_ms, double at_random)
{
    struct pace pace;
    return (double)slices_of(&pace, slices, lost_ms, at_random) / (double)US;
}

static double rate_of(unsigned slices, double lost_ms, double at_random)
{
    struct pace pace;
    slices_of(&pace, slices, lost_ms, at_random);
    return pace.rate;
}

static void the_launches_a_millisecond_are_known_of_programs_that_launch_evenly(void)
{
    EXPECT_NEAR(10, 0.1, rate_of(64, 0, 0));
    EXPECT_NEAR(10, 0.5, rate_of(24, 0, 0.15));
    EXPECT_NEAR(9, 0.3, rate_of(64, 1.5, 0.05)); /* what a pause costs is in it */
    EXPECT_NEAR(0, 0, rate_of(64, 0, 0.8));
    EXPECT_NEAR(0, 0, rate_of(12, 0, 0)); /* a few time slices do not tell */
    /* Beside another neighbour they are others soon. */
    struct pace pace;
    slices_of(&pace, 200, 0, 0);
    for (unsigned slice = 0; slice < 32; slice++)
        pace_end(&pace, (10 + slice % 7) * MS, (10 + slice % 7) * 9);
    EXPECT_NEAR(9, 0.2, pace.rate);
}

static void what_a_pause_costs_a_program_is_not_charged(void)
{
    double believed_us = waived_us(201, 4, 0);
    EXPECT_NEAR(600, 400, believed_us); /* a twenty-fifth of whatever the last time slice was, and no more can be feigned */
    EXPECT_NEAR(150, 60, waived_us(201, 0.15, 0));
    EXPECT_NEAR(150, 60, waived_us(201, 0.15, 0.02));
    EXPECT_NEAR(0, 60, waived_us(201, 0, 0)); /* a launch is counted when it is over */
    EXPECT_NEAR(0, 0, waived_us(201, -1, 0)); /* a queue that fills at first is no loss */
    EXPECT_NEAR(0, 0, waived_us(201, 0.5, 0.5)); /* launches of all sizes do not tell */
    EXPECT_NEAR(0, 0, waived_us(5, 0.5, 0));     /* nor do a few time slices */
}

static void a_forged_balance_buys_a_second_and_no_more(void)
{
    sim.kernel_ns = 100 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 8;
    forging = true;
    govern(3000, 8000 * MS);
    EXPECT_NEAR(3400, 100, (double)sim.busy_ns / (double)MS);
}

static void an_account_of_garbage_is_bounded(void)
{
    static const uint64_t garbage[] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX, UINT64_C(0xdeadbeefdeadbeef)};
    for (unsigned b = 0; b < 6; b++)
        for (unsigned s = 0; s < 6; s++) {
            struct hetero_region_device wild = {.balance_ns = (int64_t)garbage[b], .stamp_ns = garbage[s]};
            int64_t balance = budget_balance(&wild, 5000 * MS, 6000 * MS, 3000);
            EXPECT(true, balance <= BUDGET_ARREARS_NS && balance >= -BUDGET_DEBT_NS);
            budget_settle(&wild, 5000 * MS, 6000 * MS, 3000, 10 * MS);
            EXPECT(6000 * MS, wild.stamp_ns);
            EXPECT(true, budget_wait(wild.balance_ns, 1) <= (BUDGET_DEBT_NS + 10 * MS) * UINT64_C(10000) + 10000);
        }
}

static void a_program_that_rests_is_not_slowed(void)
{
    sim.kernel_ns = 500 * US;
    sim.rest_ns = 9500 * US;
    govern(3000, 5000 * MS);
    EXPECT_NEAR(500, 25, (double)sim.launched);
}

static void tiny_kernels_are_fenced_now_and_then_however_late_the_device_says_that_they_are_done(void)
{
    for (uint64_t late = 0; late <= 16; late += 4) {
        pid_t child = fork();
        if (child == 0) {
            sim.kernel_ns = 2 * US;
            sim.host_ns = 6 * US;
            sim.in_flight = 1000;
            sim.seen_ns = late * US;
            govern(5000, 300 * MS);
            printf("%llu us late: %llu fences\n", (unsigned long long)late, (unsigned long long)sim.fences);
            EXPECT_NEAR(55, 10, (double)sim.launched / (double)sim.fences);
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        EXPECT(0, status);
    }
}

static void what_is_in_flight_at_the_end_of_a_slice_is_bounded(void)
{
    sim.kernel_ns = 20 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 100000;
    govern(3000, 3000 * MS);
    EXPECT(true, sim.free_at <= sim.clock + 4 * MS);
    EXPECT(sim.busy_ns / sim.kernel_ns, sim.launched);
    EXPECT(sim.launched, account.launches);
    EXPECT_NEAR((double)sim.busy_ns, (double)sim.busy_ns * 0.03, (double)account.gpu_ns);
}

/* ------------------------------------------------------------------- the governor, with its thread and real time */

static void real_pause(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static uint64_t real_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 * MS + (uint64_t)time.tv_nsec;
}

static _Atomic uint64_t device_free_at;

static bool real_set(void *fence, void *stream)
{
    (void)stream;
    *(uint64_t *)fence = atomic_load(&device_free_at);
    return true;
}

static bool real_passed(void *fence)
{
    return *(uint64_t *)fence <= real_now();
}

static bool no_power(const char *uuid, struct power_reading *reading)
{
    (void)uuid, (void)reading;
    return false;
}

static const struct engine in_real_time = {
    .now = real_now,
    .pause = real_pause,
    .begin = nothing,
    .stream_context = sim_stream_context,
    .make = sim_make,
    .drop = free,
    .set = real_set,
    .passed = real_passed,
    .device_name = sim_device_name,
    .power = no_power,
};

enum { GATE_THREADS = 4, GATE_LAUNCHES = 300 };

static void *launch_through_the_gate(void *number)
{
    struct stream_key stream = {.stream = (char *)&sim + (uintptr_t)number};
    for (int i = 0; i < GATE_LAUNCHES; i++) {
        EXPECT(true, gate_enter(&sim.governor->gate));
        uint64_t free_at = atomic_load(&device_free_at), now = real_now();
        while (!atomic_compare_exchange_weak(&device_free_at, &free_at, (free_at > now ? free_at : now) + 100 * US))
            ;
        gate_leave(&sim.governor->gate, &stream);
    }
    gate_before_stream_ends(&sim.governor->gate, &stream);
    return NULL;
}

static void threads_pass_the_gate_of_a_governor_in_real_time(void)
{
    usage_file();
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    sim.governor = governor_new(&in_real_time, &terms, &account, directory, 0);
    pthread_t threads[GATE_THREADS];
    uint64_t since = real_now();
    for (uintptr_t t = 0; t < GATE_THREADS; t++)
        EXPECT(0, pthread_create(&threads[t], NULL, launch_through_the_gate, (void *)t));
    for (int t = 0; t < GATE_THREADS; t++)
        pthread_join(threads[t], NULL);
    /* 120 ms of device time at a half, less the time slices at either end; and prompt, on whatever machine. */
    EXPECT(true, real_now() - since > 200 * MS && real_now() - since < 5000 * MS);
    governor_retire(sim.governor);
    EXPECT(GATE_THREADS * GATE_LAUNCHES, atomic_load(&sim.governor->gate.traffic) >> 32);
}

/* Whether no thread can be started: its stack would take more than there is. */
static void threads_are_impossible(bool impossible)
{
    static pthread_attr_t usual, huge;
    if (impossible) {
        EXPECT(0, pthread_getattr_default_np(&usual));
        EXPECT(0, pthread_getattr_default_np(&huge));
        EXPECT(0, pthread_attr_setstacksize(&huge, SIZE_MAX / 4));
    }
    EXPECT(0, pthread_setattr_default_np(impossible ? &huge : &usual));
}

static uint64_t skipped_ns;
static unsigned looks; /* how often a thread could not be started yet */

/* Each look is 20 s after the one before. */
static uint64_t now_after_a_look(void)
{
    if (looks < 8) {
        skipped_ns += 20000 * MS;
        if (++looks == 8)
            threads_are_impossible(false);
    }
    return real_now() + skipped_ns;
}

static void a_thread_that_cannot_be_started_is_told_of_once_a_minute(void)
{
    static struct engine engine; /* the governor's thread may outlive this function */
    engine = in_real_time;
    engine.now = now_after_a_look;
    usage_file();
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    sim.governor = governor_new(&engine, &terms, &account, directory, 0);
    FILE *said = tmpfile();
    setenv("HETERO_LOG", "info", 1);
    EXPECT(STDERR_FILENO, dup2(fileno(said), STDERR_FILENO));
    threads_are_impossible(true);
    alarm(30); /* rather than wait for ever */
    EXPECT(true, gate_enter(&sim.governor->gate));
    gate_leave(&sim.governor->gate, &(struct stream_key){0});
    governor_retire(sim.governor);

    char line[256];
    unsigned refused = 0, went_on = 0;
    rewind(said);
    while (fgets(line, sizeof line, said) != NULL) {
        refused += strstr(line, "no thread could be started") != NULL;
        went_on += strstr(line, "could be started now") != NULL;
    }
    EXPECT(8, looks);
    EXPECT(3, refused); /* at 0, 60 and 120 s of 140 */
    EXPECT(1, went_on);
}

/* --------------------------------------------------------------------------------------------------------- the list */

static const struct test tests[] = {
    TEST(a_balance_grows_at_the_share_and_no_further_than_a_slice_at_rest),
    TEST(one_that_was_kept_waiting_keeps_what_it_is_owed),
    TEST(debt_is_carried_in_full),
    TEST(a_share_of_a_busy_device_is_kept_whatever_the_kernels_take),
    TEST(a_program_bound_by_its_own_thread_gets_its_share_of_the_launches),
    TEST(the_launches_a_millisecond_are_known_of_programs_that_launch_evenly),
    TEST(what_a_pause_costs_a_program_is_not_charged),
    TEST(a_forged_balance_buys_a_second_and_no_more),
    TEST(an_account_of_garbage_is_bounded),
    TEST(a_program_that_rests_is_not_slowed),
    TEST(time_on_a_card_at_its_power_limit_is_charged_more),
    TEST(a_power_limited_program_gets_its_share_of_its_speed_alone),
    TEST(tiny_kernels_are_fenced_now_and_then_however_late_the_device_says_that_they_are_done),
    TEST(what_is_in_flight_at_the_end_of_a_slice_is_bounded),
    TEST(threads_pass_the_gate_of_a_governor_in_real_time),
    TEST(a_thread_that_cannot_be_started_is_told_of_once_a_minute),
};

int main(int count, char **arguments)
{
    return run_test(tests, sizeof tests / sizeof *tests, count, arguments);
}
