/* What the processes of a grant share, with real processes and threads: the region and its ledger, whole and scribbled
 * on, and the table of what a process holds.
 */
#include "machine/check.h"

#include "../../limiters/core/ledger.h"
#include "../../limiters/core/table.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

TEST(a_reservation_is_exact_to_the_byte)
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
    EXPECT(1000, region.shared->devices[3].peak_bytes);
    EXPECT(2, region.shared->devices[3].denied_allocation_count);
}

TEST(a_limit_below_what_is_used_refuses_and_takes_nothing)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 800, 1000));

    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 1, 500));
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 0, 500));
    EXPECT(800, ledger_used(&region, 0));
}

TEST(a_million_racing_reservations_are_never_once_over)
{
    enum { PROCESSES = 8, ROUNDS = 125000, LIMIT = 1000 };
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    int start_pipe[2];
    EXPECT(0, pipe(start_pipe));
    for (int process_index = 0; process_index < PROCESSES; process_index++) {
        if (fork() != 0)
            continue;
        struct region *child_region = calloc(1, sizeof *child_region);
        char start_byte;
        close(start_pipe[1]);
        if (!region_open(child_region, path) || read(start_pipe[0], &start_byte, 1) != 0) /* until all are there */
            _exit(2);
        unsigned seed = (unsigned)process_index;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t bytes = (uint64_t)rand_r(&seed) % 400;
            enum ledger_answer answer = ledger_reserve(child_region, 0, bytes, LIMIT);
            if (answer == LEDGER_BROKEN)
                _exit(4);
            if (answer == LEDGER_OVER)
                continue;
            /* Others change it meanwhile, but none of them to more than the limit. */
            if (*(volatile uint64_t *)&child_region->shared->devices[0].used_bytes > LIMIT)
                _exit(3);
            if (round % 256 == 0)
                sched_yield(); /* holding it, so that the others meet it on any machine */
            ledger_release(child_region, 0, bytes);
        }
        _exit(0);
    }
    close(start_pipe[0]);
    close(start_pipe[1]);
    for (int process_index = 0, status; process_index < PROCESSES; process_index++) {
        wait(&status);
        EXPECT(0, status);
    }
    EXPECT(0, ledger_used(&region, 0));
    EXPECT(true,
           region.shared->devices[0].denied_allocation_count > 0 && region.shared->devices[0].peak_bytes > LIMIT / 2);
}

TEST(what_a_killed_process_held_is_given_back_when_asked_for)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    int ready_pipe[2];
    EXPECT(0, pipe(ready_pipe));
    pid_t child = fork();
    if (child == 0) {
        struct region *child_region = calloc(1, sizeof *child_region);
        char granted_byte = region_open(child_region, path) &&
                            ledger_reserve(child_region, 0, 700, 1000) == LEDGER_GRANTED;
        if (write(ready_pipe[1], &granted_byte, 1) == 1)
            pause();
        _exit(1);
    }
    char granted_byte = 0;
    EXPECT(1, read(ready_pipe[0], &granted_byte, 1));
    EXPECT(1, granted_byte);
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 400, 1000));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);

    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 400, 1000));
    EXPECT(400, ledger_used(&region, 0));
}

TEST(a_process_killed_inside_the_lock_leaves_the_sum_right)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 100, 1000));
    pid_t child = fork();
    if (child == 0) {
        struct region *child_region = calloc(1, sizeof *child_region);
        if (!region_open(child_region, path) || !region_lock(child_region))
            _exit(1);
        region_slot(child_region)->used_bytes[0] = 500; /* and not yet in the sum */
        kill(getpid(), SIGKILL);
    }
    waitpid(child, NULL, 0);

    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 900, 1000));
    EXPECT(1000, ledger_used(&region, 0));
}

TEST(a_child_of_fork_has_a_slot_of_its_own)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 300, 1000));
    int status;
    if (fork() == 0) {
        region_forget(&region);
        _exit(ledger_reserve(&region, 0, 200, 1000) == LEDGER_GRANTED && region.slot_index == 1 ? 0 : 1);
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

TEST(with_every_slot_taken_by_the_living_the_next_process_is_refused)
{
    const char *path = usage_file();
    static struct region last_region;
    int ready_pipe[2];
    EXPECT(0, pipe(ready_pipe));
    pid_t child = fork(); /* one process may not have a descriptor for each */
    if (child == 0) {
        take_slots(path, HETERO_REGION_SLOTS / 2);
        if (write(ready_pipe[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    struct region *regions = take_slots(path, HETERO_REGION_SLOTS / 2);
    int slot_index = regions[7].slot_index;
    char done_byte;
    EXPECT(1, read(ready_pipe[0], &done_byte, 1));
    EXPECT(true, region_open(&last_region, path));
    EXPECT(LEDGER_BROKEN, ledger_reserve(&last_region, 0, 1, HETERO_REGION_SLOTS));

    EXPECT(0, munmap(regions[7].slot_mapping, 1)); /* that one ends */
    EXPECT(LEDGER_GRANTED, ledger_reserve(&last_region, 0, 1, HETERO_REGION_SLOTS));
    EXPECT(slot_index, last_region.slot_index);
    EXPECT(HETERO_REGION_SLOTS, ledger_used(&last_region, 0));
    kill(child, SIGKILL);
    wait(NULL);
    EXPECT(HETERO_REGION_SLOTS / 2, ledger_used(&last_region, 0));
    free(regions);
}

TEST(a_region_that_is_short_or_foreign_is_refused)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(0, truncate(path, 100));
    EXPECT(false, region_open(&region, path));
    EXPECT(0, truncate(path, 0));
    EXPECT(0, truncate(path, sizeof(struct hetero_region)));
    int fd = open(path, O_WRONLY);
    EXPECT(8, write(fd, "SOMETHIN", 8));
    close(fd);
    EXPECT(false, region_open(&region, path));
}

enum { SCRIBBLED_LIMIT = 1000 };

/* Write garbage over all of the region until killed. */
static pid_t scribbler(const char *path)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    int fd = open(path, O_RDWR);
    uint32_t *region_words = mmap(NULL, sizeof(struct hetero_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unsigned seed = 1;
    for (;;)
        for (size_t word_index = 0; word_index < sizeof(struct hetero_region) / sizeof *region_words; word_index++)
            region_words[word_index] = rand_r(&seed) % 3 == 0 ? 0 : (uint32_t)rand_r(&seed) << 1;
}

static struct region *racing_region;
static _Atomic uint64_t racing_bytes;

static void *race_for_memory(void *seed_)
{
    unsigned seed = (unsigned)(uintptr_t)seed_;
    for (int round = 0; round < 4000; round++) {
        uint64_t bytes = (uint64_t)rand_r(&seed) % 400;
        if (ledger_reserve(racing_region, 0, bytes, SCRIBBLED_LIMIT) != LEDGER_GRANTED)
            continue;
        if (atomic_fetch_add(&racing_bytes, bytes) + bytes > SCRIBBLED_LIMIT)
            _exit(3);
        atomic_fetch_sub(&racing_bytes, bytes);
        ledger_release(racing_region, 0, bytes);
    }
    return NULL;
}

static void race_in_threads(void)
{
    pthread_t threads[3];
    for (uintptr_t thread_index = 0; thread_index < 3; thread_index++)
        EXPECT(0, pthread_create(&threads[thread_index], NULL, race_for_memory, (void *)(thread_index + 1)));
    for (int thread_index = 0; thread_index < 3; thread_index++)
        pthread_join(threads[thread_index], NULL);
}

TEST(threads_of_one_process_never_reserve_more_than_the_limit)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    racing_region = &region;
    race_in_threads();
    EXPECT(0, ledger_used(&region, 0));
    EXPECT(true, region.shared->devices[0].peak_bytes <= SCRIBBLED_LIMIT);
}

TEST(garbage_in_the_region_raises_no_limit_and_stops_nobody)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    racing_region = &region;
    pid_t enemy = scribbler(path);
    alarm(30);
    race_in_threads();
    kill(enemy, SIGKILL);
    waitpid(enemy, NULL, 0);
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        EXPECT(0, region.own_bytes[device]);
}

TEST(a_process_whose_slot_was_wiped_knows_what_it_holds)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 800, 1000));
    memset((char *)region.shared + 16, 0, sizeof *region.shared - 16);

    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 201, 1000));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 200, 1000));
    EXPECT(1000, ledger_used(&region, 0));
    EXPECT(1000, region.shared->slots[region.slot_index].used_bytes[0]);
}

TEST(a_lock_that_names_nobody_is_taken_and_one_that_is_kept_is_not_waited_for_without_end)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    atomic_store(&region.shared->lock_word, 0xdead);
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 100, 1000));

    int ready_pipe[2];
    EXPECT(0, pipe(ready_pipe));
    pid_t child = fork();
    if (child == 0) {
        struct region *child_region = calloc(1, sizeof *child_region);
        if (region_open(child_region, path) && region_lock(child_region) && write(ready_pipe[1], "", 1) == 1)
            raise(SIGSTOP);
        _exit(1);
    }
    char ready_byte;
    EXPECT(1, read(ready_pipe[0], &ready_byte, 1));
    EXPECT(LEDGER_BROKEN, ledger_reserve(&region, 0, 100, 1000));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 100, 1000));
}

TEST(the_table_finds_what_was_put_through_growth_and_removal)
{
    enum { COUNT = 20000 };
    struct entry entry = {.kind = 1}, found_entry;
    for (uint64_t key = 0; key < COUNT; key++) {
        entry.key = key << 9;
        entry.bytes = key;
        EXPECT(true, table_put(&entry, &found_entry));
        EXPECT(0, found_entry.kind);
    }
    for (uint64_t key = 0; key < COUNT; key += 3)
        EXPECT(true, table_take(1, key << 9, &found_entry));
    for (uint64_t key = 0; key < COUNT; key++) {
        bool expected = key % 3 != 0;
        EXPECT(expected, table_get(1, key << 9, &found_entry));
        if (expected)
            EXPECT(key, found_entry.bytes);
    }
    EXPECT(false, table_get(2, 1 << 9, &found_entry));
    entry.key = 1 << 9;
    EXPECT(true, table_put(&entry, &found_entry));
    EXPECT(1, found_entry.bytes);
}
