/* The locks of the time slice, with real processes. */
#include "machine/check.h"

#include "../../limiters/timeshare/time_slice.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static void a_stopped_holder_of_the_slice_is_waited_for_once(void)
{
    usage_file();
    static struct time_slice time_slice;
    time_slice_open(&time_slice, directory, 0);
    int ready[2];
    EXPECT(0, pipe(ready));
    pid_t child = fork();
    if (child == 0) {
        struct time_slice theirs = {0};
        time_slice_open(&theirs, directory, 0);
        time_slice_take(&theirs, false, NULL, NULL);
        if (write(ready[1], "", 1) == 1)
            raise(SIGSTOP);
        _exit(1);
    }
    char said;
    EXPECT(1, read(ready[0], &said, 1));
    time_t before = time(NULL);
    for (int round = 0; round < 100; round++) {
        time_slice_take(&time_slice, false, NULL, NULL);
        EXPECT(true, time_slice_held(&time_slice));
        time_slice_give(&time_slice);
    }
    EXPECT(true, time(NULL) - before <= 5);

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    EXPECT(true, time_slice_try(&time_slice, false));
    if (fork() == 0) {
        struct time_slice theirs = {0};
        time_slice_open(&theirs, directory, 0);
        _exit(time_slice_held(&theirs) ? 0 : 1);
    }
    int status;
    wait(&status);
    EXPECT(0, status);
}

/* One of each priority may run, because those of high priority do not wait until the others have drained. */
static void the_slice_is_one_tenants_of_a_priority_at_a_time(void)
{
    enum { TENANTS = 4, ROUNDS = 300 };
    usage_file();
    _Atomic int *running = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int t = 0; t < TENANTS; t++) {
        if (fork() != 0)
            continue;
        struct time_slice time_slice = {0};
        time_slice_open(&time_slice, directory, 0);
        for (int round = 0; round < ROUNDS; round++) {
            bool high = t % 2 == 0;
            time_slice_take(&time_slice, high, NULL, NULL);
            if (atomic_fetch_add(&running[high], 1) != 0)
                _exit(1);
            usleep(10);
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

static void one_of_high_priority_does_not_wait_for_one_of_low_and_keeps_it_from_the_next_slice(void)
{
    usage_file();
    static struct time_slice high, low;
    time_slice_open(&high, directory, 0);
    time_slice_open(&low, directory, 0);
    time_slice_take(&low, false, NULL, NULL);
    EXPECT(false, time_slice_claimed(&low));
    EXPECT(true, time_slice_held(&high));
    time_slice_take(&high, true, NULL, NULL);
    EXPECT(true, time_slice_claimed(&low));
    EXPECT(true, time_slice_drains(&high));
    time_slice_give(&low);
    EXPECT(false, time_slice_drains(&high));
    EXPECT(false, time_slice_try(&low, false));
    time_slice_give(&high);
    EXPECT(true, time_slice_try(&low, false));
    EXPECT(false, time_slice_try(&high, true)); /* borrowed time is nobody's claim */
    time_slice_give(&low);
    time_slice_close(&low);
    time_slice_close(&high);
}

static void who_is_owed_less_hears_of_who_is_owed_more(void)
{
    usage_file();
    static struct time_slice one, other;
    time_slice_open(&one, directory, 0);
    time_slice_open(&other, directory, 0);
    time_slice_owe(&one, 3 * TIME_SLICE_STEP_NS);
    EXPECT(false, time_slice_owed_more(&one));
    EXPECT(true, time_slice_owed_more(&other));
    time_slice_owe(&other, 3 * TIME_SLICE_STEP_NS + 1);
    EXPECT(false, time_slice_owed_more(&other));
    time_slice_owe(&other, 1000 * TIME_SLICE_STEP_NS);
    EXPECT(true, time_slice_owed_more(&one));
    EXPECT(false, time_slice_owed_more(&other));
    time_slice_owe(&other, -1000 * TIME_SLICE_STEP_NS);
    EXPECT(false, time_slice_owed_more(&one));
    time_slice_close(&one); /* as a kill does */
    EXPECT(false, time_slice_owed_more(&other));
    time_slice_close(&other);
}

static const struct test tests[] = {
    TEST(a_stopped_holder_of_the_slice_is_waited_for_once),
    TEST(the_slice_is_one_tenants_of_a_priority_at_a_time),
    TEST(one_of_high_priority_does_not_wait_for_one_of_low_and_keeps_it_from_the_next_slice),
    TEST(who_is_owed_less_hears_of_who_is_owed_more),
};

int main(int count, char **arguments)
{
    return run_test(tests, sizeof tests / sizeof *tests, count, arguments);
}
