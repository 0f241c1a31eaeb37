/* limiters/core as an ordinary library: the ledger with real processes, the budget and the governor with a virtual
 * clock and a simulated device. `core_test` lists the tests; `core_test NAME` runs one.
 */
#include "../../limiters/core/budget.h"
#include "../../limiters/core/governor.h"
#include "../../limiters/core/ledger.h"
#include "../../limiters/core/pace.h"
#include "../../limiters/core/table.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(expected, actual)                                                                                       \
    do {                                                                                                               \
        long long expected_ = (long long)(expected), actual_ = (long long)(actual);                                    \
        if (expected_ != actual_) {                                                                                    \
            printf("%s:%d: %s: expected %lld, got %lld\n", __FILE__, __LINE__, #actual, expected_, actual_);           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define EXPECT_NEAR(expected, slack, actual)                                                                           \
    do {                                                                                                               \
        double expected_ = (expected), actual_ = (actual);                                                             \
        if (actual_ < expected_ - (slack) || actual_ > expected_ + (slack)) {                                          \
            printf("%s:%d: %s: expected %g within %g, got %g\n", __FILE__, __LINE__, #actual, expected_,               \
                   (double)(slack), actual_);                                                                          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

/* ------------------------------------------------------------------------------------------------------ the ledger */

static char directory[] = "/tmp/hetero-core-XXXXXX";

static void remove_directory(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/usage", directory);
    unlink(path);
    rmdir(directory);
}

static pid_t owner;

static void remove_directory_once(void)
{
    if (getpid() == owner)
        remove_directory();
}

static const char *usage_file(void)
{
    static char path[64];
    if (mkdtemp(directory) == NULL)
        exit(1);
    owner = getpid();
    atexit(remove_directory_once);
    snprintf(path, sizeof path, "%s/usage", directory);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct hetero_region)) != 0)
        exit(1);
    close(file);
    return path;
}

static void a_reservation_is_exact_to_the_byte(void)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));

    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 3, 999, 1000));
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 3, 2, 1000));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 3, 1, 1000));
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 3, UINT64_MAX, 1000));
    EXPECT(1000, ledger_used(&region, 3));
    EXPECT(0, ledger_used(&region, 2));
    ledger_release(&region, 3, 600);
    EXPECT(400, ledger_used(&region, 3));
    EXPECT(1000, region.shared->devices[3].peak);
    EXPECT(2, region.shared->devices[3].denied);
}

static void a_limit_below_what_is_used_refuses_and_takes_nothing(void)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 800, 1000));

    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 1, 500));
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 0, 500));
    EXPECT(800, ledger_used(&region, 0));
}

static void a_million_racing_reservations_are_never_once_over(void)
{
    enum { PROCESSES = 8, ROUNDS = 125000, LIMIT = 1000 };
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    for (int p = 0; p < PROCESSES; p++) {
        if (fork() != 0)
            continue;
        struct region *mine = calloc(1, sizeof *mine);
        if (!region_open(mine, path))
            _exit(2);
        unsigned seed = (unsigned)p;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t bytes = (uint64_t)rand_r(&seed) % 400;
            enum ledger_answer answer = ledger_reserve(mine, 0, bytes, LIMIT);
            if (answer == LEDGER_BROKEN)
                _exit(4);
            if (answer == LEDGER_OVER)
                continue;
            /* Others change it meanwhile, but none of them to more than the limit. */
            if (*(volatile uint64_t *)&mine->shared->devices[0].used > LIMIT)
                _exit(3);
            ledger_release(mine, 0, bytes);
        }
        _exit(0);
    }
    for (int p = 0, status; p < PROCESSES; p++) {
        wait(&status);
        EXPECT(0, status);
    }
    EXPECT(0, ledger_used(&region, 0));
    EXPECT(true, region.shared->devices[0].denied > 0 && region.shared->devices[0].peak > LIMIT / 2);
}

static void what_a_killed_process_held_is_given_back_when_asked_for(void)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    int ready[2];
    EXPECT(0, pipe(ready));
    pid_t child = fork();
    if (child == 0) {
        struct region *mine = calloc(1, sizeof *mine);
        char granted = region_open(mine, path) && ledger_reserve(mine, 0, 700, 1000) == LEDGER_GRANTED;
        if (write(ready[1], &granted, 1) == 1)
            pause();
        _exit(1);
    }
    char granted = 0;
    EXPECT(1, read(ready[0], &granted, 1));
    EXPECT(1, granted);
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 400, 1000));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);

    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 400, 1000));
    EXPECT(400, ledger_used(&region, 0));
}

static void a_process_killed_inside_the_lock_leaves_the_sum_right(void)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 100, 1000));
    pid_t child = fork();
    if (child == 0) {
        struct region *mine = calloc(1, sizeof *mine);
        if (!region_open(mine, path) || !region_lock(mine))
            _exit(1);
        region_slot(mine)->used[0] = 500; /* and not yet in the sum */
        kill(getpid(), SIGKILL);
    }
    waitpid(child, NULL, 0);

    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 900, 1000));
    EXPECT(1000, ledger_used(&region, 0));
}

static void a_child_of_fork_has_a_slot_of_its_own(void)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 300, 1000));
    int status;
    if (fork() == 0) {
        region_forget(&region);
        _exit(ledger_reserve(&region, 0, 200, 1000) == LEDGER_GRANTED && region.slot == 1 ? 0 : 1);
    }
    wait(&status);
    EXPECT(0, status);

    EXPECT(300, ledger_used(&region, 0));
}

static struct region *take_slots(const char *path, unsigned count)
{
    struct region *regions = calloc(count, sizeof *regions);
    for (unsigned i = 0; i < count; i++) {
        EXPECT(true, region_open(&regions[i], path));
        EXPECT(LEDGER_GRANTED, ledger_reserve(&regions[i], 0, 1, HETERO_REGION_SLOTS));
    }
    return regions;
}

static void with_every_slot_taken_by_the_living_the_next_process_is_refused(void)
{
    const char *path = usage_file();
    static struct region last;
    int ready[2];
    EXPECT(0, pipe(ready));
    pid_t other = fork(); /* one process may not have a descriptor for each */
    if (other == 0) {
        take_slots(path, HETERO_REGION_SLOTS / 2);
        if (write(ready[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    struct region *regions = take_slots(path, HETERO_REGION_SLOTS / 2);
    int seat = regions[7].slot;
    char done;
    EXPECT(1, read(ready[0], &done, 1));
    EXPECT(true, region_open(&last, path));
    EXPECT(LEDGER_BROKEN, ledger_reserve(&last, 0, 1, HETERO_REGION_SLOTS));

    region_forget(&regions[7]); /* that one ends */
    EXPECT(LEDGER_GRANTED, ledger_reserve(&last, 0, 1, HETERO_REGION_SLOTS));
    EXPECT(seat, last.slot);
    EXPECT(HETERO_REGION_SLOTS, ledger_used(&last, 0));
    kill(other, SIGKILL);
    wait(NULL);
    EXPECT(HETERO_REGION_SLOTS / 2, ledger_used(&last, 0));
    free(regions);
}

static void a_region_that_is_short_or_foreign_is_refused(void)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(0, truncate(path, 100));
    EXPECT(false, region_open(&region, path));
    EXPECT(0, truncate(path, 0));
    EXPECT(0, truncate(path, sizeof(struct hetero_region)));
    int file = open(path, O_WRONLY);
    EXPECT(8, write(file, "SOMETHIN", 8));
    close(file);
    EXPECT(false, region_open(&region, path));
}

/* ------------------------------------------------------------------------------------- a region that is scribbled on */

enum { SCRIBBLED_LIMIT = 1000 };

/* Write garbage over all of the region until killed. */
static pid_t scribbler(const char *path)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    int file = open(path, O_RDWR);
    uint32_t *words = mmap(NULL, sizeof(struct hetero_region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    unsigned seed = 1;
    for (;;)
        for (size_t at = 0; at < sizeof(struct hetero_region) / sizeof *words; at++)
            words[at] = rand_r(&seed) % 3 == 0 ? 0 : (uint32_t)rand_r(&seed) << 1;
}

static struct region *racing;
static _Atomic uint64_t racing_holds;

static void *race_for_memory(void *seed_)
{
    unsigned seed = (unsigned)(uintptr_t)seed_;
    for (int round = 0; round < 4000; round++) {
        uint64_t bytes = (uint64_t)rand_r(&seed) % 400;
        if (ledger_reserve(racing, 0, bytes, SCRIBBLED_LIMIT) != LEDGER_GRANTED)
            continue;
        if (atomic_fetch_add(&racing_holds, bytes) + bytes > SCRIBBLED_LIMIT)
            _exit(3);
        atomic_fetch_sub(&racing_holds, bytes);
        ledger_release(racing, 0, bytes);
    }
    return NULL;
}

static void race_in_threads(void)
{
    pthread_t threads[3];
    for (uintptr_t t = 0; t < 3; t++)
        EXPECT(0, pthread_create(&threads[t], NULL, race_for_memory, (void *)(t + 1)));
    for (int t = 0; t < 3; t++)
        pthread_join(threads[t], NULL);
}

static void threads_of_one_process_never_reserve_more_than_the_limit(void)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    racing = &region;
    race_in_threads();
    EXPECT(0, ledger_used(&region, 0));
    EXPECT(true, region.shared->devices[0].peak <= SCRIBBLED_LIMIT);
}

static void garbage_in_the_region_raises_no_limit_and_stops_nobody(void)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    racing = &region;
    pid_t enemy = scribbler(path);
    alarm(30);
    race_in_threads();
    kill(enemy, SIGKILL);
    waitpid(enemy, NULL, 0);
    for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++)
        EXPECT(0, region.own[d]);
}

static void a_process_whose_slot_was_wiped_knows_what_it_holds(void)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 800, 1000));
    memset((char *)region.shared + 16, 0, sizeof *region.shared - 16);

    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 201, 1000));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 200, 1000));
    EXPECT(1000, ledger_used(&region, 0));
    EXPECT(1000, region.shared->slots[region.slot].used[0]);
}

static void a_lock_that_names_nobody_is_taken_and_one_that_is_kept_is_not_waited_for_without_end(void)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    atomic_store(&region.shared->lock, 0xdead);
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 100, 1000));

    int ready[2];
    EXPECT(0, pipe(ready));
    pid_t child = fork();
    if (child == 0) {
        struct region *mine = calloc(1, sizeof *mine);
        if (region_open(mine, path) && region_lock(mine) && write(ready[1], "", 1) == 1)
            raise(SIGSTOP);
        _exit(1);
    }
    char said;
    EXPECT(1, read(ready[0], &said, 1));
    EXPECT(LEDGER_BROKEN, ledger_reserve(&region, 0, 100, 1000));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 100, 1000));
}

/* ------------------------------------------------------------------------------------------------------- the turns */

static void a_stopped_holder_of_the_turn_is_waited_for_once(void)
{
    usage_file();
    static struct turn turn;
    turn_open(&turn, directory, 0);
    int ready[2];
    EXPECT(0, pipe(ready));
    pid_t child = fork();
    if (child == 0) {
        struct turn theirs = {0};
        turn_open(&theirs, directory, 0);
        turn_take(&theirs, false);
        if (write(ready[1], "", 1) == 1)
            raise(SIGSTOP);
        _exit(1);
    }
    char said;
    EXPECT(1, read(ready[0], &said, 1));
    time_t before = time(NULL);
    for (int round = 0; round < 100; round++) {
        turn_take(&turn, false);
        EXPECT(true, turn_held(&turn));
        turn_give(&turn);
    }
    EXPECT(true, time(NULL) - before <= 5);

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int looks = 0; !turn_try(&turn); looks++) { /* the waiter has it for a moment */
        EXPECT(true, looks < 1000);
        usleep(1000);
    }
    if (fork() == 0) {
        struct turn theirs = {0};
        turn_open(&theirs, directory, 0);
        _exit(turn_held(&theirs) ? 0 : 1);
    }
    int status;
    wait(&status);
    EXPECT(0, status);
}

static void the_turn_is_one_tenants_at_a_time(void)
{
    enum { TENANTS = 4, ROUNDS = 300 };
    usage_file();
    _Atomic int *running = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int t = 0; t < TENANTS; t++) {
        if (fork() != 0)
            continue;
        struct turn turn = {0};
        turn_open(&turn, directory, 0);
        for (int round = 0; round < ROUNDS; round++) {
            turn_take(&turn, t == 0);
            if (atomic_fetch_add(running, 1) != 0)
                _exit(1);
            usleep(10);
            atomic_fetch_sub(running, 1);
            turn_give(&turn);
        }
        _exit(0);
    }
    for (int t = 0, status; t < TENANTS; t++) {
        wait(&status);
        EXPECT(0, status);
    }
}

/* ------------------------------------------------------------------------------------------------------- the table */

static void the_table_finds_what_was_put_through_growth_and_removal(void)
{
    enum { COUNT = 20000 };
    struct entry entry = {.kind = 1}, found;
    for (uint64_t i = 0; i < COUNT; i++) {
        entry.key = i << 9;
        entry.bytes = i;
        EXPECT(true, table_put(&entry, &found));
        EXPECT(0, found.kind);
    }
    for (uint64_t i = 0; i < COUNT; i += 3)
        EXPECT(true, table_take(1, i << 9, &found));
    for (uint64_t i = 0; i < COUNT; i++) {
        bool expected = i % 3 != 0;
        EXPECT(expected, table_get(1, i << 9, &found));
        if (expected)
            EXPECT(i, found.bytes);
    }
    EXPECT(false, table_get(2, 1 << 9, &found));
    entry.key = 1 << 9;
    EXPECT(true, table_put(&entry, &found));
    EXPECT(1, found.bytes);
}

/* ------------------------------------------------------------------------------------------------------ the budget */

static void a_balance_grows_at_the_share_and_no_further_than_a_turn_at_rest(void)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 3000, 0);
    EXPECT(3 * MS, budget_balance(&account, 1000 * MS, 1010 * MS, 3000));
    EXPECT(BUDGET_TURN_NS, budget_balance(&account, 5000 * MS, 5000 * MS, 3000));
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
    uint64_t launched, busy_ns;
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
    atomic_store(&sim.governor->waiting, 1);
    if (atomic_load(&sim.governor->gate) == 0)
        return;
    sim.inside = true;
    EXPECT(true, governor_enter(sim.governor));
    sim.free_at = (sim.free_at > sim.clock ? sim.free_at : sim.clock) + sim.kernel_ns;
    sim.busy_ns += sim.kernel_ns;
    sim.launched++;
    struct stream_key stream = {.stream = &sim};
    governor_leave(sim.governor, &stream);
    sim.host_until = sim.clock + sim.host_ns;
    if (sim.rest_ns > 0)
        sim.host_until = sim.free_at + sim.rest_ns;
    atomic_store(&sim.governor->waiting, 0);
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

static void *sim_home(void *stream)
{
    return stream;
}

static void *sim_make(void *context)
{
    return context == NULL ? NULL : calloc(1, sizeof(uint64_t));
}

static bool sim_set(void *mark, void *stream)
{
    EXPECT(true, stream == &sim);
    *(uint64_t *)mark = sim.free_at;
    return true;
}

static bool sim_passed(void *mark)
{
    return *(uint64_t *)mark <= sim.clock;
}

static void nothing(void)
{
}

static uint64_t sim_price_permille; /* what the device draws while busy, of what it may draw; 0: it will not say */

static bool sim_power(const char *uuid, struct power_reading *reading)
{
    (void)uuid;
    static uint64_t last_clock, last_busy;
    double busy = sim.clock > last_clock ? (double)(sim.busy_ns - last_busy) / (double)(sim.clock - last_clock) : 0;
    last_clock = sim.clock;
    last_busy = sim.busy_ns;
    reading->limit_mw = 600000;
    reading->mean_mw = 100000 + (uint32_t)(busy * 500 * (double)sim_price_permille);
    reading->clock = 1024;
    reading->count = 0;
    return sim_price_permille > 0;
}

static const struct engine simulated = {
    .now = sim_now,
    .pause = sim_pause,
    .begin = nothing,
    .home = sim_home,
    .make = sim_make,
    .drop = free,
    .set = sim_set,
    .passed = sim_passed,
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
        if (atomic_load(&sim.governor->waiting) == 0) {
            sim_pause(50 * US);
            continue;
        }
        if (atomic_load(&sim.governor->traffic) == 0)
            sim.governor->asked_ns = sim.clock;
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
                /* The last turn, with three kernels of 15 ms in flight, is a point of 6 s; a device kept waiting costs
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

/* Two tenants in turns of changing length, one of which draws `own_mw` above 121 W, and what the price of its time is
 * after some looks at samples as an H200 takes them: every 20 ms, through a filter, stamped 4 ms late and more. */
static double price_beside(double own_share, uint32_t own_mw, double others_share, uint32_t others_mw, bool samples,
                           uint32_t clock)
{
    struct power power;
    struct power_reading reading = {.mean_mw = 121000, .limit_mw = 700000, .clock = clock};
    double shares[] = {own_share, others_share, 1 - own_share - others_share};
    uint64_t ms = 1000000, ends = ms;
    int whose = 2;
    double filtered = 0, mean = 0;
    power_begin(&power, ms * MS, &reading);
    for (unsigned look = 0; look < 20; look++) {
        reading.count = 0;
        for (unsigned i = 0; i < 250; i++, ms++) {
            while (ms == ends) { /* ours, theirs, and whatever is left is nobody's */
                whose = (whose + 1) % 3;
                ends += (uint64_t)(shares[whose] * 20 * (0.5 + (double)(rand() % 1000) / 1000) + 0.5);
            }
            if (whose < 2)
                power_ran(&power, ms * MS, (ms + 1) * MS, whose == 0);
            double drawn = whose == 0 ? own_mw : whose == 1 ? others_mw : 0;
            filtered += (drawn - filtered) * 0.0769;
            mean += (drawn - mean) / 1000;
            if (ms % 20 == 7) {
                reading.samples[reading.count].at_ns = (ms + 4) * MS + (rand() % 4 == 0 ? 9 * MS : 0) + 300 * US;
                reading.samples[reading.count++].mw = 121000 + (uint32_t)filtered;
            }
        }
        reading.mean_mw = 121000 + (uint32_t)mean;
        reading.count *= samples;
        power_look(&power, ms * MS, &reading);
    }
    return power.price / 1024.0;
}

static void time_on_a_card_at_its_power_limit_is_dearer(void)
{
    /* Large products at 30 % of the time reach 36 % of the speed they have alone (one H200), whoever is beside. */
    EXPECT_NEAR(36.0 / 30, 0.02, price_beside(0.3, 848000, 0, 0, true, 1024));
    EXPECT_NEAR(36.0 / 30, 0.05, price_beside(0.3, 848000, 0, 0, false, 1024)); /* a mean that is late */
    EXPECT_NEAR(36.0 / 30, 0.03, price_beside(0.5, 848000, 0.4, 180000, true, 1024));
    EXPECT_NEAR(36.0 / 30, 0.04, price_beside(0.3, 848000, 0.6, 365000, true, 1024));
    /* A modest program is charged at par, whoever is beside. */
    EXPECT_NEAR(1, 0, price_beside(0.3, 365000, 0, 0, true, 1024));
    EXPECT_NEAR(1, 0, price_beside(0.4, 180000, 0.5, 848000, true, 1024));
    EXPECT_NEAR(1, 0, price_beside(0.3, 365000, 0.6, 848000, true, 1024));
    /* Nor for what its neighbour's hunger does to its speed. */
    EXPECT_NEAR(0.95, 0.01, price_beside(0.3, 365000, 0.6, 848000, true, 924));
    /* Without samples nobody can tell, and both are charged for the mean. */
    double blended = price_beside(0.3, 365000, 0.6, 848000, false, 1024);
    EXPECT(true, blended > 1.02 && blended < 1.15);
}

static void a_hungry_program_gets_its_share_of_its_speed_alone(void)
{
    sim.kernel_ns = 1600 * US;
    sim.host_ns = 2 * US;
    sim.in_flight = 8;
    sim_price_permille = 1500;
    govern(3000, 10000 * MS);
    EXPECT_NEAR(30.0 / power_slowdown(1.5, 1), 0.7, (double)sim.busy_ns * 100 / 10000e6);
}

/* What is not charged of the last of many turns of 20 ms, in which a launch takes so long at first and later. */
static double waived_us(unsigned turns, double cold_us, double cold_ms, double warm_us)
{
    struct pace pace = {0};
    uint64_t waived = 0, now = 1000 * MS;
    double launched = 0;
    for (unsigned turn = 0; turn < turns; turn++, now += 30 * MS) {
        uint64_t first = now;
        pace_begin(&pace, first, (uint32_t)launched);
        for (; now < first + 20 * MS; now += MS / 2) {
            double at_ms = (double)(now - first) / (double)MS;
            launched += 500 / (at_ms < cold_ms ? cold_us : warm_us);
            pace_look(&pace, now + MS / 2, (uint32_t)launched);
        }
        waived = pace_end(&pace, now, (uint32_t)launched);
    }
    return (double)waived / (double)US;
}

static void what_a_pause_costs_a_program_is_not_charged(void)
{
    /* Half as fast for a millisecond: half of that is lost. */
    EXPECT_NEAR(500, 25, waived_us(200, 20, 1, 10));
    EXPECT_NEAR(0, 5, waived_us(200, 10, 1, 10));
    /* One turn says little. */
    EXPECT_NEAR(0, 20, waived_us(1, 20, 1, 10));
    /* A queue that fills at first is no loss, and none can be feigned beyond a twenty-fifth. */
    EXPECT_NEAR(0, 0, waived_us(200, 2, 1, 100));
    EXPECT_NEAR(800, 5, waived_us(200, 1000000, 2, 1));
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

static void what_is_in_flight_at_the_end_of_a_turn_is_bounded(void)
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

/* ------------------------------------------------------------------------- the governor, with its thread and real time */

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

static bool real_set(void *mark, void *stream)
{
    (void)stream;
    *(uint64_t *)mark = atomic_load(&device_free_at);
    return true;
}

static bool real_passed(void *mark)
{
    return *(uint64_t *)mark <= real_now();
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
    .home = sim_home,
    .make = sim_make,
    .drop = free,
    .set = real_set,
    .passed = real_passed,
    .power = no_power,
};

enum { GATE_THREADS = 4, GATE_LAUNCHES = 300 };

static void *launch_through_the_gate(void *number)
{
    struct stream_key stream = {.stream = (char *)&sim + (uintptr_t)number};
    for (int i = 0; i < GATE_LAUNCHES; i++) {
        EXPECT(true, governor_enter(sim.governor));
        uint64_t free_at = atomic_load(&device_free_at), now = real_now();
        while (!atomic_compare_exchange_weak(&device_free_at, &free_at, (free_at > now ? free_at : now) + 100 * US))
            ;
        governor_leave(sim.governor, &stream);
    }
    governor_before_stream_ends(sim.governor, &stream);
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
    /* 120 ms of device time at a half, less the turns at either end; and prompt, on whatever machine. */
    EXPECT(true, real_now() - since > 200 * MS && real_now() - since < 5000 * MS);
    governor_retire(sim.governor);
    EXPECT(GATE_THREADS * GATE_LAUNCHES, atomic_load(&sim.governor->traffic) >> 32);
}

/* --------------------------------------------------------------------------------------------------------- the list */

#define TEST(name) {#name, name}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        TEST(a_reservation_is_exact_to_the_byte),
        TEST(a_limit_below_what_is_used_refuses_and_takes_nothing),
        TEST(a_million_racing_reservations_are_never_once_over),
        TEST(what_a_killed_process_held_is_given_back_when_asked_for),
        TEST(a_process_killed_inside_the_lock_leaves_the_sum_right),
        TEST(a_child_of_fork_has_a_slot_of_its_own),
        TEST(with_every_slot_taken_by_the_living_the_next_process_is_refused),
        TEST(a_region_that_is_short_or_foreign_is_refused),
        TEST(threads_of_one_process_never_reserve_more_than_the_limit),
        TEST(garbage_in_the_region_raises_no_limit_and_stops_nobody),
        TEST(a_process_whose_slot_was_wiped_knows_what_it_holds),
        TEST(a_lock_that_names_nobody_is_taken_and_one_that_is_kept_is_not_waited_for_without_end),
        TEST(a_stopped_holder_of_the_turn_is_waited_for_once),
        TEST(the_turn_is_one_tenants_at_a_time),
        TEST(the_table_finds_what_was_put_through_growth_and_removal),
        TEST(a_balance_grows_at_the_share_and_no_further_than_a_turn_at_rest),
        TEST(one_that_was_kept_waiting_keeps_what_it_is_owed),
        TEST(debt_is_carried_in_full),
        TEST(a_share_of_a_busy_device_is_kept_whatever_the_kernels_take),
        TEST(a_program_bound_by_its_own_thread_gets_its_share_of_the_launches),
        TEST(what_a_pause_costs_a_program_is_not_charged),
        TEST(a_forged_balance_buys_a_second_and_no_more),
        TEST(an_account_of_garbage_is_bounded),
        TEST(a_program_that_rests_is_not_slowed),
        TEST(time_on_a_card_at_its_power_limit_is_dearer),
        TEST(a_hungry_program_gets_its_share_of_its_speed_alone),
        TEST(what_is_in_flight_at_the_end_of_a_turn_is_bounded),
        TEST(threads_pass_the_gate_of_a_governor_in_real_time),
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (count == 1)
            puts(tests[i].name);
        else if (strcmp(arguments[1], tests[i].name) == 0)
            return tests[i].run(), 0;
    }
    return count == 1 ? 0 : 2;
}
