/* The governor with a virtual clock and a simulated device, and its thread in real time. */
#include "machine/check.h"

#include "../../limiters/timeshare/budget.h"
#include "../../limiters/timeshare/governor.h"

#include <sys/wait.h>
#include <time.h>

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
    atomic_store(&sim.governor->gate.queue.waiting_count, 1);
    if (atomic_load(&sim.governor->gate.state) == GATE_CLOSED)
        return;
    sim.inside = true;
    struct stream_key stream = {.stream = &sim};
    EXPECT(true, gate_enter(&sim.governor->gate, &stream));
    sim.free_at = (sim.free_at > sim.clock ? sim.free_at : sim.clock) + sim.kernel_ns;
    sim.busy_ns += sim.kernel_ns;
    sim.launched++;
    gate_leave(&sim.governor->gate, &stream);
    sim.host_until = sim.clock + sim.host_ns;
    if (sim.rest_ns > 0)
        sim.host_until = sim.free_at + sim.rest_ns;
    atomic_store(&sim.governor->gate.queue.waiting_count, 0);
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

static unsigned sim_power_asked;

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
    sim_power_asked++;
    static uint64_t last_clock, last_busy;
    double busy = sim.clock > last_clock ? (double)(sim.busy_ns - last_busy) / (double)(sim.clock - last_clock) : 0;
    last_clock = sim.clock;
    last_busy = sim.busy_ns;
    reading->limit_mw = 600000;
    reading->mean_mw = 100000 + (uint32_t)(busy * 500 * (double)sim_power_permille);
    reading->clock_units = 1024;
    reading->sample_count = 0;
    return sim_power_permille > 0;
}

static const struct engine simulated = {
    .now = sim_now,
    .pause = sim_pause,
    .begin = nothing,
    .stream_context = sim_stream_context,
    .make = sim_make,
    .drop = free,
    .forget = free,
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
        if (atomic_load(&sim.governor->gate.queue.waiting_count) == 0) {
            sim_pause(50 * US);
            continue;
        }
        if (gate_launches(&sim.governor->gate) == 0)
            sim.governor->account.asked_at_ns = sim.clock;
        if (forging)
            atomic_store(&account.balance_ns, INT64_MAX);
        governor_round(sim.governor);
    }
}

TEST(a_share_of_a_busy_device_is_kept_whatever_the_kernels_take)
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
                /* The last time slice, with three kernels of 15 ms in flight, is a point of 6 s; a device kept waiting
                 * costs up to 3 % of the share. */
                EXPECT_NEAR((double)cores[c], 170 + cores[c] * 0.03, share);
                exit(0);
            }
            int status;
            waitpid(child, &status, 0);
            EXPECT(0, status);
        }
}

TEST(a_program_bound_by_its_own_thread_gets_its_share_of_the_launches)
{
    sim.kernel_ns = 5 * US;
    sim.rest_ns = 25 * US;
    govern(3000, 10000 * MS);
    double alone = 10000e6 / 30e3;
    EXPECT_NEAR(30.0, 2.0, 100 * (double)sim.launched / alone);
}

TEST(a_power_limited_program_gets_its_share_of_its_speed_alone)
{
    sim.kernel_ns = 1600 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 8;
    sim_power_permille = 1500;
    govern(3000, 40000 * MS); /* in the first second nothing is known */
    EXPECT_NEAR(30.0 / power_slowdown(power_model_of("NVIDIA H200"), 1.5, 1), 0.7, (double)sim.busy_ns * 100 / 40000e6);
}

TEST(time_on_a_card_of_no_known_model_is_charged_as_it_passes)
{
    sim.kernel_ns = 1600 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 8;
    sim_power_permille = 1500;
    sim_name = "another card";
    govern(3000, 10000 * MS);
    EXPECT_NEAR(30.0, 0.7, (double)sim.busy_ns * 100 / 10000e6);
    EXPECT(0, sim_power_asked);
}

TEST(a_forged_balance_buys_a_second_and_no_more)
{
    sim.kernel_ns = 100 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 8;
    forging = true;
    govern(3000, 8000 * MS);
    EXPECT_NEAR(3400, 100, (double)sim.busy_ns / (double)MS);
}

TEST(a_program_that_rests_is_not_slowed)
{
    sim.kernel_ns = 500 * US;
    sim.rest_ns = 9500 * US;
    govern(3000, 5000 * MS);
    EXPECT_NEAR(500, 25, (double)sim.launched);
}

TEST(tiny_kernels_are_fenced_now_and_then_however_late_the_device_says_that_they_are_done)
{
    for (uint64_t late = 0; late <= 16; late += 4) {
        pid_t child = fork();
        if (child == 0) {
            sim.kernel_ns = 2 * US;
            sim.host_ns = 6 * US;
            sim.in_flight = 1000;
            sim.seen_ns = late * US;
            govern(5000, 300 * MS);
            printf("%llu us late: %llu fences, %llu launches, %llu charged\n", (unsigned long long)late,
                   (unsigned long long)sim.fences, (unsigned long long)sim.launched,
                   (unsigned long long)account.gpu_ns);
            EXPECT_NEAR(55, 10, (double)sim.launched / (double)sim.fences);
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        EXPECT(0, status);
    }
}

TEST(what_is_in_flight_at_the_end_of_a_slice_is_bounded)
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
