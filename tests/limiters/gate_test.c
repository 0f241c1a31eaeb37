/* The gate and the governor with their threads, in real time. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "machine/check.h"

#include "../../limiters/timeshare/governor.h"

#include <time.h>

static struct governor *governor;

static struct hetero_grant_device terms;
static struct hetero_region_device account;

static char stream_handles[64];

static void *stream_context(void *stream)
{
    return stream;
}

static void *make_fence(void *context)
{
    return context == NULL ? NULL : calloc(1, sizeof(uint64_t));
}

static void nothing(void)
{
}

static bool device_name(const char *uuid, char *name, size_t size)
{
    return false;
}

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
    *(uint64_t *)fence = atomic_load(&device_free_at);
    return true;
}

static bool real_passed(void *fence)
{
    return *(uint64_t *)fence <= real_now();
}

static bool no_power(const char *uuid, struct power_reading *reading)
{
    return false;
}

static const struct engine in_real_time = {
    .now = real_now,
    .pause = real_pause,
    .begin = nothing,
    .stream_context = stream_context,
    .make = make_fence,
    .drop = free,
    .forget = free,
    .set = real_set,
    .passed = real_passed,
    .device_name = device_name,
    .power = no_power,
};

enum { GATE_THREADS = 4, GATE_LAUNCHES = 300 };

static void *launch_through_the_gate(void *number)
{
    struct stream_key stream = {.stream = stream_handles + (uintptr_t)number};
    for (int i = 0; i < GATE_LAUNCHES; i++) {
        EXPECT(true, gate_enter(&governor->gate, &stream));
        uint64_t free_at = atomic_load(&device_free_at), now = real_now();
        while (!atomic_compare_exchange_weak(&device_free_at, &free_at, (free_at > now ? free_at : now) + 100 * US))
            ;
        gate_leave(&governor->gate, &stream);
    }
    gate_before_stream_ends(&governor->gate, &stream);
    return NULL;
}

TEST(threads_pass_the_gate_of_a_governor_in_real_time)
{
    usage_file();
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    governor = governor_new(&in_real_time, &terms, &account, directory, 0);
    pthread_t threads[GATE_THREADS];
    uint64_t since = real_now();
    for (uintptr_t t = 0; t < GATE_THREADS; t++)
        EXPECT(0, pthread_create(&threads[t], NULL, launch_through_the_gate, (void *)t));
    for (int t = 0; t < GATE_THREADS; t++)
        pthread_join(threads[t], NULL);
    /* 120 ms of device time at a half, less the time slices at either end; and prompt, on whatever machine. */
    EXPECT(true, real_now() - since > 200 * MS && real_now() - since < 5000 * MS);
    governor_retire(governor);
    EXPECT(GATE_THREADS * GATE_LAUNCHES, gate_launches(&governor->gate));
}

static struct gate long_gate, waiting_gate;
static atomic_uint inside, most_inside;

static bool passes_never(void *fence)
{
    return false;
}

static void *launch_slowly(void *stream)
{
    struct stream_key key = {.stream = stream};
    EXPECT(true, gate_enter(&long_gate, &key));
    unsigned now = atomic_fetch_add(&inside, 1) + 1;
    if (now > atomic_load(&most_inside))
        atomic_store(&most_inside, now);
    real_pause(5 * MS);
    atomic_fetch_sub(&inside, 1);
    gate_leave(&long_gate, &key);
    return NULL;
}

TEST(of_threads_with_long_kernels_one_launches_at_a_time)
{
    static struct engine engine;
    pthread_t threads[GATE_THREADS];
    engine = in_real_time;
    engine.passed = passes_never;
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    gate_make(&long_gate, &engine, &terms, NULL, NULL, NULL);
    gate_set(&long_gate, GATE_OPEN);
    for (int t = 0; t < GATE_THREADS; t++)
        EXPECT(0, pthread_create(&threads[t], NULL, launch_slowly, stream_handles + t));
    for (int t = 0; t < GATE_THREADS; t++)
        pthread_join(threads[t], NULL);
    EXPECT(1, most_inside);
    EXPECT(GATE_THREADS, gate_launches(&long_gate));
}

enum { GATE_WAITING = 8 };
static atomic_uint arrived;

/* Kernels that wait for each other end when all were launched. */
static bool passes_when_all_arrived(void *fence)
{
    return atomic_load(&arrived) == GATE_WAITING;
}

static void *arrive(void *stream)
{
    struct stream_key key = {.stream = stream};
    EXPECT(true, gate_enter(&waiting_gate, &key));
    atomic_fetch_add(&arrived, 1);
    gate_leave(&waiting_gate, &key);
    return NULL;
}

TEST(kernels_that_wait_for_each_other_are_all_launched_soon)
{
    static struct engine engine;
    pthread_t threads[GATE_WAITING];
    engine = in_real_time;
    engine.passed = passes_when_all_arrived;
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    gate_make(&waiting_gate, &engine, &terms, NULL, NULL, NULL);
    gate_set(&waiting_gate, GATE_OPEN);
    uint64_t since = real_now();
    for (int t = 0; t < GATE_WAITING; t++)
        EXPECT(0, pthread_create(&threads[t], NULL, arrive, stream_handles + t));
    for (int t = 0; t < GATE_WAITING; t++)
        pthread_join(threads[t], NULL);
    EXPECT(true, real_now() - since < 150 * MS);
}

static void open_a_gate_for_long_kernels(struct gate *gate)
{
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    gate_make(gate, &in_real_time, &terms, NULL, NULL, NULL);
    gate_set(gate, GATE_OPEN);
}

TEST(the_sole_launch_does_not_end_with_one_that_interrupts_it)
{
    static struct gate gate;
    struct stream_key key = {.stream = stream_handles};
    open_a_gate_for_long_kernels(&gate);
    EXPECT(true, gate_enter(&gate, &key));
    EXPECT(true, gate.sole.thread_id != 0);
    EXPECT(true, gate_enter(&gate, &key));
    gate_leave(&gate, &key);
    EXPECT(true, gate.sole.thread_id != 0);
    gate_leave(&gate, &key);
    EXPECT(true, gate.sole.thread_id == 0);
}

/* It cannot begin as another launch is being made, and the next fence is far. */
TEST(the_sole_launch_ends_where_a_hold_could_not_begin)
{
    static struct gate gate;
    struct stream_key key = {.stream = stream_handles};
    open_a_gate_for_long_kernels(&gate);
    gate.fences.stride_launches = 64;
    gate.inside.uncelled_launcher_count = 1;
    hold_ask(&gate.hold, 1, 0, HOLD_OF_KERNELS, true);
    gate_set(&gate, GATE_HOLDS);
    EXPECT(true, gate_enter(&gate, &key));
    gate_leave(&gate, &key);
    EXPECT(true, gate.sole.thread_id == 0);
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
static unsigned looks; /* how often it was looked at the clock before a thread could be started */
enum { LOOKS = 11 };   /* three of them before the gate */

static int stderr_of_test = -1; /* the standard error before, while a file is in its place */

/* Lines go to the standard error that a program has when it is loaded. So the test that reads them has a file in its
 * place before that: glibc calls constructors of a priority first, with the program's arguments. */
__attribute__((constructor(101))) static void load_with_file_as_stderr(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "a_thread_that_cannot_be_started_is_reported_once_a_minute") != 0)
        return;
    FILE *lines = tmpfile();
    stderr_of_test = dup(STDERR_FILENO);
    if (lines == NULL || stderr_of_test < 0 || dup2(fileno(lines), STDERR_FILENO) < 0)
        abort();
}

/* Each look is 20 s after the one before. */
static uint64_t now_after_a_look(void)
{
    if (looks < LOOKS) {
        skipped_ns += 20000 * MS;
        if (++looks == LOOKS)
            threads_are_impossible(false);
    }
    return real_now() + skipped_ns;
}

TEST(a_thread_that_cannot_be_started_is_reported_once_a_minute)
{
    FILE *said = fopen("/proc/self/fd/2", "r");
    EXPECT(true, said != NULL);
    static struct engine engine; /* the governor's thread may outlive this function */
    engine = in_real_time;
    engine.now = now_after_a_look;
    usage_file();
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    governor = governor_new(&engine, &terms, &account, directory, 0);
    setenv("HETERO_LOG", "info", 1);
    threads_are_impossible(true);
    alarm(30); /* rather than wait for ever */
    EXPECT(true, gate_enter(&governor->gate, &(struct stream_key){0}));
    gate_leave(&governor->gate, &(struct stream_key){0});
    governor_retire(governor);
    EXPECT(STDERR_FILENO, dup2(stderr_of_test, STDERR_FILENO)); /* what the thread says now is not to be read */

    char line[256];
    unsigned refused = 0, went_on = 0;
    while (fgets(line, sizeof line, said) != NULL) {
        refused += strstr(line, "no thread could be started") != NULL;
        went_on += strstr(line, "could be started now") != NULL;
    }
    EXPECT(LOOKS, looks);
    EXPECT(3, refused); /* at 0, 60 and 120 s of 140 */
    EXPECT(1, went_on);
}

/* One of them has work for a while, the others are done at once. */
TEST(of_five_thousand_streams_each_is_waited_for)
{
    static struct tracked_streams streams = {.engine = &in_real_time};
    for (uintptr_t busy = 1; busy <= 5000; busy += 1111) {
        for (uintptr_t s = 1; s <= 5000; s++) {
            struct tracked_stream *stream = tracked_streams_get(&streams, &(struct stream_key){.stream = (void *)s});
            EXPECT(true, stream != NULL);
            atomic_store(&device_free_at, s == busy ? UINT64_MAX : 0);
            atomic_store(&stream->is_dirty, true);
            tracked_stream_flush(&streams, stream);
        }
        EXPECT(false, tracked_streams_settled(&streams));
        *(uint64_t *)tracked_streams_find(&streams, &(struct stream_key){.stream = (void *)busy})->tail_fence = 0;
        EXPECT(true, tracked_streams_settled(&streams));
    }
    EXPECT(true, streams.reached_count <= 5000);
}

/* A clock and a device of the next test's own. */
static uint64_t moment_ns, done_ns;

static uint64_t moment(void)
{
    return moment_ns;
}

static void wait_for(uint64_t ns)
{
    moment_ns += ns;
}

static bool set_at_once(void *fence, void *stream)
{
    *(uint64_t *)fence = done_ns;
    return true;
}

static bool is_done(void *fence)
{
    return *(uint64_t *)fence <= moment_ns;
}

static const struct engine in_moments = {
    .now = moment,
    .pause = wait_for,
    .begin = nothing,
    .stream_context = stream_context,
    .make = make_fence,
    .drop = free,
    .forget = free,
    .set = set_at_once,
    .passed = is_done,
};

/* The most kernels of so many nanoseconds that are in flight when another may follow, once they are known. */
static uint64_t in_flight_before_another(uint64_t kernel_ns)
{
    static struct gate gates[2];
    static unsigned made;
    struct gate *gate = &gates[made++];
    struct stream_key stream = {.stream = stream_handles};
    uint64_t most = 0;
    moment_ns = done_ns = 1000 * MS;
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    gate_make(gate, &in_moments, &terms, NULL, NULL, NULL);
    gate_set(gate, GATE_OPEN);
    for (int launch = 0; launch < 20; launch++) {
        EXPECT(true, gate_enter(gate, &stream));
        done_ns = done_ns > moment_ns ? done_ns : moment_ns;
        uint64_t in_flight = (done_ns - moment_ns + kernel_ns - 1) / kernel_ns;
        most = launch >= 5 && in_flight > most ? in_flight : most;
        done_ns += kernel_ns;
        gate_leave(gate, &stream);
    }
    gate_before_stream_ends(gate, &stream);
    return most;
}

/* What is in flight when a time slice ends delays the next tenant. */
TEST(kernels_of_more_than_20_ms_are_in_flight_alone)
{
    EXPECT(2, in_flight_before_another(18 * MS));
    EXPECT(0, in_flight_before_another(22 * MS));
}

static uint64_t charged_ns, out_of_debt_ns;

static uint64_t spend(void *argument, uint64_t ns)
{
    charged_ns += ns;
    return out_of_debt_ns > moment_ns ? out_of_debt_ns - moment_ns : 0;
}

static void launch_for(struct gate *gate, uint64_t ns)
{
    struct stream_key stream = {.stream = stream_handles};
    EXPECT(true, gate_enter(gate, &stream));
    done_ns = (done_ns > moment_ns ? done_ns : moment_ns) + ns;
    gate_leave(gate, &stream);
}

/* The process exits behind work of so many nanoseconds. */
static struct gate *retired_behind(uint64_t ns)
{
    static struct gate gate;
    moment_ns = done_ns = 1000 * MS;
    terms = (struct hetero_grant_device){.core = 1000, .policy = HETERO_POLICY_FIXED};
    gate_make(&gate, &in_moments, &terms, NULL, spend, NULL);
    gate_set(&gate, GATE_OPEN);
    launch_for(&gate, ns);
    gate_set(&gate, GATE_CLOSED);
    gate_retire(&gate);
    return &gate;
}

TEST(four_milliseconds_at_exit_are_charged_and_do_not_wait_for_the_grants_debt)
{
    struct gate *gate = retired_behind(0);
    out_of_debt_ns = moment_ns + 45000 * MS;
    for (int launch = 0; launch < 4; launch++)
        launch_for(gate, MS);
    EXPECT(true, moment_ns < 1000 * MS + 5 * MS);
    EXPECT(true, charged_ns >= 3 * MS);
    launch_for(gate, 2 * MS);
    launch_for(gate, MS);
    EXPECT(true, moment_ns > out_of_debt_ns);
}

TEST(what_was_in_flight_at_exit_is_charged_and_is_not_waited_for_again)
{
    struct gate *gate = retired_behind(5000 * MS);
    launch_for(gate, 0);
    launch_for(gate, 0);
    EXPECT(true, moment_ns < 6000 * MS + 2 * MS);
    EXPECT(true, charged_ns >= 4999 * MS);
}

static bool begin_hold(void *handle, void *stream, bool stalls)
{
    return handle != NULL && stream != NULL && stalls;
}

static void stamp_nothing(void *handle, void *stream)
{
}

static void release_nothing(void *handle)
{
}

static atomic_bool watching;

static void *watch_hold(void *hold)
{
    while (atomic_load(&watching))
        hold_watch(hold, 3 * HOLD_MOST_NS, 4 * HOLD_MOST_NS);
    return NULL;
}

/* Whoever watches takes the launcher for one that the driver keeps, at any moment of its beginning. */
TEST(a_hold_that_its_watcher_released_can_be_forgotten)
{
    static const struct engine engine = {
        .now = moment,
        .make_hold = make_fence,
        .drop_hold = free,
        .hold = begin_hold,
        .stamp = stamp_nothing,
        .release = release_nothing,
    };
    static struct hold hold = {.engine = &engine, .is_released = true};
    const struct tracked_stream stream = {.context = stream_handles};
    const struct stream_key key = {.stream = stream_handles};
    pthread_t watcher;
    moment_ns = HOLD_MOST_NS;
    watching = true;
    EXPECT(0, pthread_create(&watcher, NULL, watch_hold, &hold));
    for (uint64_t until = real_now() + 1000 * MS; real_now() < until;) {
        hold_ask(&hold, HOLD_LAUNCHES, 0, HOLD_OF_KERNELS, true);
        if (hold_begin(&hold, &stream, &key))
            hold_note(&hold, &key);
        hold_forget(&hold, stream_handles); /* waits until it is released */
    }
    atomic_store(&watching, false);
    pthread_join(watcher, NULL);
}

static unsigned fences_made;

static void *count_fence(void *context)
{
    fences_made++;
    return make_fence(context);
}

TEST(a_fence_given_up_while_its_context_may_end_is_used_again_if_it_lives)
{
    static struct gate gate;
    struct engine engine = in_moments;
    moment_ns = done_ns = 1000 * MS;
    engine.make = count_fence;
    terms = (struct hetero_grant_device){.core = 5000, .policy = HETERO_POLICY_FIXED};
    gate_make(&gate, &engine, &terms, NULL, NULL, NULL);
    gate_set(&gate, GATE_OPEN);
    for (int end = 0; end < 5; end++) {
        launch_for(&gate, 500 * MS);
        gate_before_context_ends(&gate, stream_handles);
        gate.sole.kernels_are_long = true;
        launch_for(&gate, 0); /* by patience */
        gate_after_context_ended(&gate, stream_handles, true);
        moment_ns = done_ns;
    }
    EXPECT(true, fences_made <= 4);
}
