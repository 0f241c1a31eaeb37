/* Who has the time slice, with real processes and files. */
#include "machine/check.h"
#include "machine/grants.h"

#include "../../limiters/timeshare/time_slice.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static struct time_slice opened(unsigned grant, uint32_t priority)
{
    struct time_slice time_slice = {0};
    time_slice_open(&time_slice, grant_directory(grant, 3000, priority), 0);
    return time_slice;
}

static int64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Another process takes the time slice and stops. */
static pid_t stopped_holder(unsigned grant)
{
    int ready[2];
    EXPECT(0, pipe(ready));
    const char *theirs = grant_directory(grant, 3000, HETERO_PRIORITY_LOW);
    pid_t child = fork();
    if (child == 0) {
        struct time_slice time_slice = {0};
        time_slice_open(&time_slice, theirs, 0);
        time_slice_take(&time_slice, false, NULL);
        if (write(ready[1], "", 1) == 1)
            raise(SIGSTOP);
        _exit(1);
    }
    char said;
    EXPECT(1, read(ready[0], &said, 1));
    return child;
}

TEST(a_stopped_holder_of_the_slice_is_waited_for_once)
{
    struct time_slice time_slice = opened(0, HETERO_PRIORITY_LOW);
    pid_t child = stopped_holder(1);
    int64_t before = now_ms();
    for (int round = 0; round < 100; round++) {
        time_slice_take(&time_slice, false, NULL);
        time_slice_give(&time_slice);
    }
    printf("a hundred time slices beside one that is stopped: %lld ms\n", (long long)(now_ms() - before));
    EXPECT(true, now_ms() - before <= 3 * TIME_SLICE_PATIENCE_NS / 1000000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    EXPECT(true, time_slice_try(&time_slice, false));
    time_slice_close(&time_slice);
}

TEST(who_was_killed_in_its_time_slice_does_not_hold_it)
{
    struct time_slice time_slice = opened(0, HETERO_PRIORITY_LOW);
    pid_t child = stopped_holder(1);
    EXPECT(true, time_slice_held(&time_slice));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int look = 0; look < 1000 && time_slice_held(&time_slice); look++)
        usleep(1000);
    EXPECT(false, time_slice_held(&time_slice));
    EXPECT(true, time_slice_try(&time_slice, false));
    time_slice_close(&time_slice);
}

/* One of each priority may run, because those of high priority do not wait until the others have drained; and of two
 * processes of one grant, one. */
TEST(the_slice_is_one_tenants_of_a_priority_at_a_time)
{
    enum { TENANTS = 6, ROUNDS = 300 };
    _Atomic int *running = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned g = 0; g < 4; g++)
        grant_directory(g, 2500, g % 2);
    for (int t = 0; t < TENANTS; t++) {
        if (fork() != 0)
            continue;
        bool high = t % 2 == 1;
        struct time_slice time_slice = opened((unsigned)t % 4, high);
        for (int round = 0; round < ROUNDS; round++) {
            time_slice_take(&time_slice, high, NULL);
            if (time_slice.is_ours && atomic_fetch_add(&running[high], 1) != 0)
                _exit(1);
            usleep(10);
            if (time_slice.is_ours)
                atomic_fetch_sub(&running[high], 1);
            time_slice_give(&time_slice);
        }
        _exit(0);
    }
    for (int t = 0, status; t < TENANTS; t++) {
        wait(&status);
        EXPECT(0, status);
    }
}

TEST(one_of_high_priority_does_not_wait_for_one_of_low_and_keeps_it_from_the_next_slice)
{
    struct time_slice high = opened(0, HETERO_PRIORITY_HIGH), low = opened(1, HETERO_PRIORITY_LOW);
    time_slice_take(&low, false, NULL);
    EXPECT(false, time_slice_claimed(&low));
    EXPECT(true, time_slice_held(&high));
    time_slice_take(&high, true, NULL);
    usleep(100);
    EXPECT(true, time_slice_claimed(&low));
    EXPECT(true, time_slice_yields(&low));
    time_slice_give(&low);
    EXPECT(false, time_slice_try(&low, false));
    time_slice_give(&high);
    usleep(100);
    EXPECT(true, time_slice_try(&low, false));
    EXPECT(false, time_slice_try(&high, true)); /* borrowed time is nobody's claim */
    time_slice_give(&low);
    time_slice_close(&low);
    time_slice_close(&high);
}

TEST(who_is_owed_less_hears_of_who_is_owed_more_and_asks)
{
    struct time_slice one = opened(0, HETERO_PRIORITY_LOW), other = opened(1, HETERO_PRIORITY_LOW);
    time_slice_owe(&one, 3 * TIME_SLICE_STEP_NS);
    usleep(100);
    EXPECT(false, time_slice_owed_more(&other));
    time_slice_take(&one, false, NULL);
    usleep(100);
    EXPECT(true, time_slice_owed_more(&other));
    time_slice_owe(&other, 3 * TIME_SLICE_STEP_NS + 1);
    EXPECT(false, time_slice_owed_more(&other));
    time_slice_owe(&one, 1000 * TIME_SLICE_STEP_NS);
    usleep(100);
    EXPECT(true, time_slice_owed_more(&other));
    time_slice_close(&one); /* as a kill does */
    usleep(100);
    EXPECT(false, time_slice_owed_more(&other));
    time_slice_close(&other);
}

/* A page that another tenant holds, for ever: it is opened without waiting for it. */
TEST(a_lease_on_a_page_keeps_nobody)
{
    char path[128];
    snprintf(path, sizeof path, "%s/page.0", grant_directory(0, 3000, HETERO_PRIORITY_LOW));
    int file = open(path, O_RDONLY | O_CLOEXEC);
    signal(SIGIO, SIG_IGN);
    EXPECT(0, fcntl(file, F_SETLEASE, F_RDLCK));
    int64_t before = now_ms();
    struct time_slice time_slice = opened(0, HETERO_PRIORITY_LOW);
    time_slice_take(&time_slice, false, NULL);
    printf("opened beside a lease in %lld ms\n", (long long)(now_ms() - before));
    EXPECT(true, now_ms() - before < 1000);
    EXPECT(true, time_slice.pages.own_page == NULL);
    EXPECT(0, fcntl(file, F_SETLEASE, F_UNLCK));
    time_slice_give(&time_slice);
    usleep(150000);
    time_slice_take(&time_slice, false, NULL);
    EXPECT(true, time_slice.pages.own_page != NULL);
    time_slice_close(&time_slice);
}

/* Whatever lies where a neighbour's page was. */
TEST(a_page_that_is_short_or_torn_or_another_is_silent)
{
    /* Each is given the page's path as $0. */
    static const char *const commands[] = {"truncate -s 0 \"$0\"", "head -c 4096 /dev/urandom > \"$0\"",
                                           "rm \"$0\" && mkdir \"$0\"", "rm -r \"$0\" && ln -s /dev/zero \"$0\""};
    struct time_slice time_slice = opened(0, HETERO_PRIORITY_LOW), other = opened(1, HETERO_PRIORITY_LOW);
    time_slice_take(&other, false, NULL);
    usleep(100);
    EXPECT(true, time_slice_held(&time_slice));
    other.pages.own_page = NULL; /* it must not touch what is truncated */
    for (unsigned c = 0; c < sizeof commands / sizeof *commands; c++) {
        char page[PATH_MAX];
        int length = snprintf(page, sizeof page, "%s/device/1", grants_root), status = -1;
        EXPECT(true, length < (int)sizeof page); /* a path that was cut would be another's file */
        pid_t shell = fork();
        if (shell == 0) {
            execl("/bin/sh", "sh", "-c", commands[c], page, (char *)NULL);
            _exit(127);
        }
        EXPECT(shell, waitpid(shell, &status, 0));
        EXPECT(0, status);
        for (int look = 0; look < 3; look++) {
            usleep(110000);
            EXPECT(false, time_slice_held(&time_slice));
        }
    }
    EXPECT(true, time_slice_try(&time_slice, false));
    time_slice_close(&time_slice);
    time_slice_close(&other);
}

/* It lives, runs and says so in a file that lies where its page was: the board names another. */
TEST(a_page_that_is_not_the_boards_is_silent)
{
    char command[512];
    struct time_slice time_slice = opened(0, HETERO_PRIORITY_LOW);
    const char *theirs = grant_directory(1, 3000, HETERO_PRIORITY_LOW);
    snprintf(command, sizeof command, "cd %s && cp device/1 1/other && mv 1/other device/1 && ln -f device/1 %s/page.0",
             grants_root, theirs);
    EXPECT(0, system(command));
    struct time_slice other = opened(1, HETERO_PRIORITY_LOW);
    time_slice_take(&other, false, NULL);
    EXPECT(true, other.is_ours && other.pages.own_page->state == PAGE_RUNS);
    usleep(100);
    EXPECT(false, time_slice_held(&time_slice));
    EXPECT(true, time_slice_try(&time_slice, false));
    time_slice_close(&time_slice);
    time_slice_close(&other);
}

/* Others may lock what they can read: each lock makes the kernel slower at every other of the file. */
static void lock_bytes(unsigned grant, unsigned count)
{
    char path[128];
    snprintf(path, sizeof path, "%s/page.0", grant_directory(grant, 3000, HETERO_PRIORITY_LOW));
    int file = open(path, O_RDONLY | O_CLOEXEC);
    for (unsigned n = count; n-- > 0;) {
        struct flock one = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 100 + 2 * n, .l_len = 1};
        EXPECT(0, fcntl(file, F_OFD_SETLK, &one));
    }
}

/* Processor time of a thousand requests that each is seen by another. */
static double requests_ms(struct time_slice *time_slice, struct time_slice *other)
{
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (int round = 0; round < 1000; round++) {
        pages_look(&time_slice->pages, clock_ns());
        pages_say(&time_slice->pages, PAGE_WANTS);
        pages_look(&other->pages, clock_ns());
        pages_say(&time_slice->pages, PAGE_IDLE);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
}

TEST(thousands_of_locks_on_a_page_make_nobody_slow)
{
    struct time_slice time_slice = opened(0, HETERO_PRIORITY_LOW), other = opened(1, HETERO_PRIORITY_LOW);
    double before_ms = requests_ms(&time_slice, &other);
    lock_bytes(0, 8000);
    double beside_ms = requests_ms(&time_slice, &other);
    printf("a thousand requests: %.1f ms, beside 8,000 locks %.1f ms\n", before_ms, beside_ms);
    EXPECT(true, beside_ms < 10 * before_ms);
    time_slice_close(&time_slice);
    time_slice_close(&other);
}
