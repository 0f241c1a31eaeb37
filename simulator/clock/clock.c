/* A clock of its own for some processes. Preloaded into each of them, it moves only while all of their threads wait:
 *
 *   VIRTUAL_CLOCK=2:FILE LD_PRELOAD=.../libpthread.so.virtual:... program
 *
 * One thread of all these processes runs at a time. What it computes takes no time, but for a little at each look at
 * the clock; when it sleeps or waits, the one that is due next goes on, and the clock says when that was. So what
 * programs, drivers and limiters do together does not depend on the machine's speed and load. Nothing passes before so
 * many processes as VIRTUAL_CLOCK says have come, and the clock is not behind the machine's when the last of them
 * comes. FILE keeps the time for those that come when they have ended. With VIRTUAL_SKEW=NS the time of day of a
 * process is so much ahead of the others', as on another node.
 *
 * A limiter finds libc's functions in libc's files by name, so that no preload comes between (limiters/core/libc.c). It
 * looks in libpthread's first: hence the name of this library. No limiter is built or linked otherwise for it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define TASKS  256u
#define NEVER  UINT64_MAX
#define SECOND UINT64_C(1000000000)

/* A look at the clock takes so long, and the clock moves by so much at once. Who has looked so often without doing
 * anything else waits awake: its looks take longer and longer, up to the last. */
#define LOOK_NS       UINT64_C(30)
#define LOOKS_NS      UINT64_C(3000)
#define PATIENT_LOOKS 64u
#define LOOK_MOST_NS  UINT64_C(4000)

/* A look at the processor's counter, which nobody takes but to wait awake. */
#define COUNTER_NS UINT64_C(10000)

/* To wake a thread takes from the first to the sum of both. */
#define WAKE_NS 20000u
#define MORE_NS 30000u

/* A lock that is taken is tried again after so long, twice as long each time, up to the second. */
#define TRY_NS      UINT64_C(1000)
#define TRY_MOST_NS UINT64_C(64000)

/* Whoever waits looks each 20 ms of the machine's own time what has become of the one that runs. After half a second in
 * which it sleeps in the kernel, and not for a disk, the others go on without it; if it is dead, at once. */
#define WATCH_NS INT64_C(20000000)
#define STUCK    25u

enum state { FREE, WAITS, RUNS, ASTRAY };

/* A thread. All is under the lock but `round`. */
struct task {
    enum state state;
    int process, thread; /* thread 0: it has not begun */
    pthread_t handle;
    uint64_t wakes_ns, order; /* when it goes on, and the order of those that do so together */
    const void *word;         /* what it waits for in its process */
    bool woken;
    uint32_t round; /* how often it went on: a futex */
};

/* The file. */
static struct clock {
    uint32_t lock, joined; /* joined: processes, counted for the start; a futex */
    int32_t runs;          /* the task that runs; -1: none does */
    uint64_t now_ns, to_realtime_ns, orders, rounds, random;
    struct task tasks[TASKS];
} *shared;

static pid_t process;
/* How far the time of day of this process is ahead of the others. */
static uint64_t skew_ns;
static __thread int own = -1;       /* this thread's task */
static __thread uint64_t looked_ns; /* looks at the clock since it moved last */
static __thread unsigned looks;     /* since this thread waited last */
static __thread bool is_let;        /* another was let run, and is to be woken */
static pthread_key_t ending;

#define REAL(X)                                                                                                        \
    X(clock_gettime)                                                                                                   \
    X(clock_nanosleep)                                                                                                 \
    X(nanosleep)                                                                                                       \
    X(sched_yield)                                                                                                     \
    X(pthread_create)                                                                                                  \
    X(pthread_join)                                                                                                    \
    X(pthread_sigmask)                                                                                                 \
    X(fcntl64)                                                                                                         \
    X(flock)                                                                                                           \
    X(pthread_mutex_lock)                                                                                              \
    X(pthread_rwlock_rdlock)                                                                                           \
    X(pthread_rwlock_wrlock)                                                                                           \
    X(pthread_cond_wait)                                                                                               \
    X(pthread_cond_timedwait)                                                                                          \
    X(pthread_cond_signal)                                                                                             \
    X(pthread_cond_broadcast)                                                                                          \
    X(sem_wait)                                                                                                        \
    X(sem_timedwait)                                                                                                   \
    X(sem_post)                                                                                                        \
    X(syscall)

#define X(name) __typeof__(&name) name;
static struct {
    REAL(X)
} real;
#undef X

/* Before the first call of any of them. */
static void find_real(void)
{
#define X(name) *(void **)&real.name = dlsym(RTLD_NEXT, #name);
    if (real.syscall == NULL) {
        REAL(X)
    }
#undef X
}

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * SECOND + (uint64_t)time->tv_nsec;
}

static struct timespec time_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / SECOND), (long)(ns % SECOND)};
}

static uint64_t real_ns(clockid_t clock)
{
    struct timespec now;
    real.clock_gettime(clock, &now);
    return ns_of(&now);
}

/* --------------------------------------------------------------------------------------------------------- who runs */

static void lock(void)
{
    while (__atomic_exchange_n(&shared->lock, 1, __ATOMIC_ACQUIRE))
        real.sched_yield();
}

/* And wake the one that was let run meanwhile: any sooner, and it would find the lock taken. */
static void unlock(void)
{
    uint32_t *round = is_let ? &shared->tasks[shared->runs].round : NULL;
    is_let = false;
    __atomic_store_n(&shared->lock, 0, __ATOMIC_RELEASE);
    if (round != NULL)
        real.syscall(SYS_futex, round, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static uint64_t wake_latency(void)
{
    shared->random = shared->random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return WAKE_NS + (shared->random >> 33) % MORE_NS;
}

/* Nobody runs: let the one that is due next. Lock held. */
static void pass_on(void)
{
    struct task *next = NULL;
    for (struct task *task = shared->tasks; task < shared->tasks + TASKS; task++)
        if (task->state == WAITS && task->wakes_ns != NEVER &&
            (next == NULL || task->wakes_ns < next->wakes_ns ||
             (task->wakes_ns == next->wakes_ns && task->order < next->order)))
            next = task;
    shared->runs = next == NULL ? -1 : (int32_t)(next - shared->tasks);
    if (next == NULL)
        return;
    shared->now_ns = next->wakes_ns > shared->now_ns ? next->wakes_ns : shared->now_ns;
    shared->rounds++;
    next->state = RUNS;
    next->word = NULL;
    __atomic_add_fetch(&next->round, 1, __ATOMIC_RELEASE);
    is_let = shared->runs != own;
}

/* As /proc says; 'Z' if it is gone. */
static char state_of(int its_process, int thread)
{
    char path[64], text[512] = "";
    if (thread == 0)
        return 'R';
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", its_process, thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    const char *name_ends = size > 0 ? strrchr(text, ')') : NULL;
    return name_ends == NULL ? 'Z' : name_ends[2];
}

/* Lock held. */
static void forget_dead(void)
{
    for (struct task *task = shared->tasks; task < shared->tasks + TASKS; task++)
        if (task->state != FREE && state_of(task->process, task->thread == 0 ? task->process : task->thread) == 'Z')
            task->state = FREE;
}

/* One that is killed says nothing, and one that reads from a pipe waits for somebody outside. */
static void watch(uint64_t *rounds, unsigned *looks)
{
    lock();
    const struct task *task = shared->runs < 0 ? NULL : &shared->tasks[shared->runs];
    char state = task == NULL ? 'R' : state_of(task->process, task->thread);
    *looks = state != 'R' && state != 'D' && *rounds == shared->rounds ? *looks + 1 : 0;
    *rounds = shared->rounds;
    if (*looks >= STUCK || state == 'Z') {
        shared->tasks[shared->runs].state = ASTRAY;
        forget_dead();
        pass_on();
    }
    unlock();
}

static void wait_to_run(uint32_t before)
{
    uint32_t *round = &shared->tasks[own].round;
    const struct timespec timeout = {.tv_nsec = WATCH_NS};
    uint64_t rounds = 0;
    unsigned looks = 0;
    while (__atomic_load_n(round, __ATOMIC_ACQUIRE) == before)
        if (real.syscall(SYS_futex, round, FUTEX_WAIT, before, &timeout, NULL, 0) != 0 && errno == ETIMEDOUT)
            watch(&rounds, &looks);
}

/* Let the others run until then, or until somebody wakes those who wait for the word; whether somebody did. */
static bool wait_until(uint64_t until_ns, const void *word)
{
    int error = errno;
    struct task *task = &shared->tasks[own];
    lock();
    uint32_t before = task->round;
    bool ran = task->state == RUNS;
    task->wakes_ns = until_ns;
    task->order = ++shared->orders;
    task->word = word;
    task->woken = false;
    task->state = WAITS;
    looked_ns = looks = 0;
    if (ran || shared->runs < 0)
        pass_on();
    unlock();
    wait_to_run(before);
    errno = error;
    return task->woken;
}

/* Whether this thread's time is the clock's; then it runs. */
static bool is_task(void)
{
    find_real();
    if (own < 0)
        return false;
    if (shared->tasks[own].state != RUNS)
        wait_until(shared->now_ns, NULL);
    return true;
}

static uint64_t now(void)
{
    return shared->now_ns + looked_ns;
}

/* Wake so many of this process that wait for the word. */
static void wake(const void *word, int most)
{
    if (shared == NULL)
        return;
    lock();
    for (struct task *task = shared->tasks; task < shared->tasks + TASKS && most > 0; task++)
        if (task->state == WAITS && task->word == word && task->process == process) {
            uint64_t at_ns = now() + wake_latency();
            task->wakes_ns = at_ns < task->wakes_ns ? at_ns : task->wakes_ns;
            task->word = NULL;
            task->woken = true;
            most--;
        }
    if (shared->runs < 0)
        pass_on();
    unlock();
}

static void rest(uint64_t ns)
{
    wait_until(now() + ns, NULL);
}

/* Sleep as the kernel lets this thread: the timers of most are late, so that they come together. */
static void sleep_until(uint64_t until_ns)
{
    int late_ns = prctl(PR_GET_TIMERSLACK);
    wait_until((until_ns > now() ? until_ns : now()) + (uint64_t)(late_ns > 0 ? late_ns : 0) + 2000, NULL);
}

/* What is locked, and never waited for by name, is tried until it can be had. */
#define TRY(attempt)                                                                                                   \
    for (uint64_t ns = TRY_NS; (attempt) == EBUSY; ns = ns < TRY_MOST_NS ? 2 * ns : ns)                                \
    rest(ns)

/* -------------------------------------------------------------------------------------------------------- who joins */

/* Lock held; -1: there are too many. */
static int new_task(int thread, uint64_t wakes_ns)
{
    for (unsigned slot = 0; slot < TASKS; slot++)
        if (shared->tasks[slot].state == FREE) {
            shared->tasks[slot] = (struct task){.state = WAITS,
                                                .process = process,
                                                .thread = thread,
                                                .wakes_ns = wakes_ns,
                                                .order = ++shared->orders,
                                                .round = shared->tasks[slot].round};
            return (int)slot;
        }
    return -1;
}

/* At a thread's end. */
static void end_task(void *unused)
{
    (void)unused;
    if (!is_task())
        return;
    lock();
    shared->tasks[own].state = FREE;
    own = -1;
    pass_on();
    unlock();
}

/* The first that comes when those before have ended begins anew. Lock held. */
static void begin(void)
{
    forget_dead();
    for (unsigned slot = 0; slot < TASKS; slot++)
        if (shared->tasks[slot].state != FREE)
            return;
    shared->joined = 0;
    shared->runs = -1;
    shared->random = 1;
}

/* All have come: go on where those before left the clock, or now. A driver that was asked in the machine's time while
 * they came has moved its card's clock: behind that, work would wait until this clock is as far. Lock held. */
static void set_off(void)
{
    uint64_t at_ns = real_ns(CLOCK_MONOTONIC);
    shared->now_ns = at_ns > shared->now_ns ? at_ns : shared->now_ns;
    shared->to_realtime_ns = real_ns(CLOCK_REALTIME) - at_ns;
    pass_on();
}

/* Wait until so many have. */
static void join(uint32_t parties)
{
    lock();
    begin();
    own = new_task(getpid(), shared->now_ns);
    uint32_t before = shared->tasks[own].round, joined = __atomic_add_fetch(&shared->joined, 1, __ATOMIC_RELEASE);
    if (joined == parties)
        set_off();
    unlock();
    real.syscall(SYS_futex, &shared->joined, FUTEX_WAKE, TASKS, NULL, NULL, 0);
    while ((joined = __atomic_load_n(&shared->joined, __ATOMIC_ACQUIRE)) < parties)
        real.syscall(SYS_futex, &shared->joined, FUTEX_WAIT, joined, NULL, NULL, 0);
    wait_to_run(before);
}

static uint64_t look(uint64_t ns)
{
    unsigned doublings = looks < PATIENT_LOOKS ? 0 : (looks - PATIENT_LOOKS) / 8, before = looks + 1;
    uint64_t longer_ns = LOOK_NS << (doublings < 16 ? doublings : 16);
    longer_ns = longer_ns < LOOK_MOST_NS ? longer_ns : LOOK_MOST_NS;
    looked_ns += ns > longer_ns ? ns : longer_ns;
    if (looked_ns >= LOOKS_NS)
        rest(0);
    looks = before;
    return now();
}

/* The processor's counter is the clock, too: loops that wait by it would never end. */
#ifdef __x86_64__
static void count(int number, siginfo_t *unused, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    bool is_short = at[0] == 0x0f && at[1] == 0x31, is_long = at[0] == 0x0f && at[1] == 0x01 && at[2] == 0xf9;
    (void)unused;
    if (!is_short && !is_long) {
        signal(number, SIG_DFL); /* it is tried again, and means what it did */
        return;
    }
    uint64_t counter = is_task() ? look(COUNTER_NS) : 0;
    registers[REG_RAX] = (greg_t)(counter & UINT32_MAX);
    registers[REG_RDX] = (greg_t)(counter >> 32);
    registers[REG_RIP] += is_short ? 2 : 3;
}

static void take_counter(void)
{
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
}
static void leave_counter(void)
{
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
}
#else
static void take_counter(void)
{
}

static void leave_counter(void)
{
}
#endif

/* A forked child's time is the machine's. */
static void leave_in_child(void)
{
    own = -1;
    shared = NULL;
    leave_counter();
}

__attribute__((constructor)) static void start(void)
{
    uint32_t parties;
    char path[4096];
    const char *text = getenv("VIRTUAL_CLOCK"), *skew = getenv("VIRTUAL_SKEW");
    find_real();
    if (text == NULL || sscanf(text, "%u:%4095s", &parties, path) != 2)
        return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *mapped = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof *shared) == 0)
        mapped = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED || pthread_key_create(&ending, end_task) != 0) {
        fprintf(stderr, "%s: no virtual clock: %s\n", path, strerror(errno));
        abort();
    }
    close(file);
    unsetenv("VIRTUAL_CLOCK"); /* for what it starts */
    skew_ns = skew != NULL ? strtoull(skew, NULL, 10) : 0;
    pthread_atfork(NULL, NULL, leave_in_child);
    shared = mapped;
    process = getpid();
    join(parties);
    take_counter();
}

/* ---------------------------------------------------------------------------------------------------- what is asked */

static bool is_of_processor(clockid_t clock)
{
    return clock < 0 || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
}

/* What is to be added for the time of day. */
static uint64_t to_realtime(void)
{
    return shared->to_realtime_ns + skew_ns;
}

static bool is_of_day(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (is_of_processor(clock) || !is_task())
        return real.clock_gettime(clock, time);
    *time = time_of(look(LOOK_NS) + (is_of_day(clock) ? to_realtime() : 0));
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    *time = (struct timeval){found.tv_sec, found.tv_nsec / 1000};
    return 0;
}

EXPORT int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (!is_task())
        return real.nanosleep(time, left);
    sleep_until(now() + ns_of(time));
    return 0;
}

EXPORT int usleep(useconds_t us)
{
    return nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* A time of day is far from one since the machine's start. */
static uint64_t absolute(const struct timespec *time)
{
    uint64_t ns = ns_of(time);
    return ns > to_realtime() / 2 ? ns - to_realtime() : ns;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    if (!is_task())
        return real.clock_nanosleep(clock, flags, time, left);
    sleep_until(flags & TIMER_ABSTIME ? absolute(time) : now() + ns_of(time));
    return 0;
}

EXPORT int sched_yield(void)
{
    if (!is_task())
        return real.sched_yield();
    rest(TRY_NS);
    return 0;
}

EXPORT int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int answer;
    if (!is_task())
        return real.pthread_mutex_lock(mutex);
    TRY(answer = pthread_mutex_trylock(mutex));
    return answer;
}

EXPORT int pthread_rwlock_rdlock(pthread_rwlock_t *it)
{
    int answer;
    if (!is_task())
        return real.pthread_rwlock_rdlock(it);
    TRY(answer = pthread_rwlock_tryrdlock(it));
    return answer;
}

EXPORT int pthread_rwlock_wrlock(pthread_rwlock_t *it)
{
    int answer;
    if (!is_task())
        return real.pthread_rwlock_wrlock(it);
    TRY(answer = pthread_rwlock_trywrlock(it));
    return answer;
}

/* Locks of files are waited for in the clock's time, too: who has one may be waiting for the clock. */
EXPORT int fcntl64(int file, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    find_real();
    bool waits = command == F_OFD_SETLKW || command == F_SETLKW;
    if (!waits || !is_task())
        return real.fcntl64(file, command, argument);
    int at_once = command == F_SETLKW ? F_SETLK : F_OFD_SETLK, answer;
    while ((answer = real.fcntl64(file, at_once, argument)) != 0 && (errno == EAGAIN || errno == EACCES))
        rest(TRY_MOST_NS);
    return answer;
}

EXPORT int fcntl(int file, int command, ...) __attribute__((alias("fcntl64")));

EXPORT int flock(int file, int operation)
{
    int answer;
    if (!is_task() || (operation & LOCK_NB))
        return real.flock(file, operation);
    while ((answer = real.flock(file, operation | LOCK_NB)) != 0 && errno == EWOULDBLOCK)
        rest(TRY_MOST_NS);
    return answer;
}

static int wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until_ns)
{
    pthread_mutex_unlock(mutex); /* nobody else runs before this one waits */
    bool woken = wait_until(until_ns, condition);
    pthread_mutex_lock(mutex);
    return woken ? 0 : ETIMEDOUT;
}

EXPORT int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    return is_task() ? wait_for(condition, mutex, NEVER) : real.pthread_cond_wait(condition, mutex);
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *time)
{
    return is_task() ? wait_for(condition, mutex, absolute(time)) : real.pthread_cond_timedwait(condition, mutex, time);
}

EXPORT int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *time)
{
    (void)clock;
    return pthread_cond_timedwait(condition, mutex, time);
}

EXPORT int pthread_cond_signal(pthread_cond_t *condition)
{
    find_real();
    wake(condition, 1);
    return real.pthread_cond_signal(condition);
}

EXPORT int pthread_cond_broadcast(pthread_cond_t *condition)
{
    find_real();
    wake(condition, (int)TASKS);
    return real.pthread_cond_broadcast(condition);
}

static int take(sem_t *semaphore, uint64_t until_ns)
{
    while (sem_trywait(semaphore) != 0)
        if (!wait_until(until_ns, semaphore)) {
            errno = ETIMEDOUT;
            return -1;
        }
    return 0;
}

EXPORT int sem_wait(sem_t *semaphore)
{
    return is_task() ? take(semaphore, NEVER) : real.sem_wait(semaphore);
}

EXPORT int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict time)
{
    return is_task() ? take(semaphore, absolute(time)) : real.sem_timedwait(semaphore, time);
}

EXPORT int sem_post(sem_t *semaphore)
{
    find_real();
    int answer = real.sem_post(semaphore);
    wake(semaphore, 1);
    return answer;
}

/* The signal of the processor's counter is never held back: it would end the process. */
EXPORT int pthread_sigmask(int how, const sigset_t *restrict set, sigset_t *restrict before)
{
    sigset_t without;
    find_real();
    if (set != NULL && how != SIG_UNBLOCK) {
        without = *set;
        sigdelset(&without, SIGSEGV);
        set = &without;
    }
    return real.pthread_sigmask(how, set, before);
}

struct beginning {
    void *(*run)(void *);
    void *argument;
    int task;
    uint32_t round;
};

static void *begin_thread(void *beginning)
{
    struct beginning it = *(struct beginning *)beginning;
    free(beginning);
    own = it.task;
    shared->tasks[own].thread = (int)real.syscall(SYS_gettid);
    pthread_setspecific(ending, shared);
    wait_to_run(it.round);
    return it.run(it.argument);
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    struct beginning *it = is_task() ? malloc(sizeof *it) : NULL;
    if (it == NULL)
        return real.pthread_create(thread, attributes, run, argument);
    lock();
    int task = new_task(0, now() + wake_latency());
    unlock();
    if (task < 0)
        abort();
    *it = (struct beginning){run, argument, task, shared->tasks[task].round};
    int answer = real.pthread_create(thread, attributes, begin_thread, it);
    if (answer == 0)
        shared->tasks[task].handle = *thread;
    else
        shared->tasks[task].state = FREE;
    return answer;
}

static bool is_alive(pthread_t thread)
{
    for (unsigned slot = 0; slot < TASKS; slot++) {
        const struct task *task = &shared->tasks[slot];
        if (task->state != FREE && task->process == process && pthread_equal(task->handle, thread))
            return true;
    }
    return false;
}

EXPORT int pthread_join(pthread_t thread, void **result)
{
    while (is_task() && is_alive(thread))
        rest(TRY_MOST_NS);
    return real.pthread_join(thread, result);
}

/* Who waits for a word that other processes have, too, looks again: it may be woken for nothing. */
static long wait_for_word(const uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    uint64_t until_ns = timeout == NULL ? NEVER : now() + ns_of(timeout);
    bool is_shared = !(operation & FUTEX_PRIVATE_FLAG), waits = __atomic_load_n(word, __ATOMIC_SEQ_CST) == value;
    if (is_shared && until_ns > now() + TRY_MOST_NS)
        until_ns = now() + TRY_MOST_NS;
    if (waits && (wait_until(until_ns, word) || is_shared))
        return 0;
    errno = waits ? ETIMEDOUT : EAGAIN;
    return -1;
}

EXPORT long syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (unsigned i = 0; i < sizeof a / sizeof *a; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    find_real();
    if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT && is_task())
        return wait_for_word((const uint32_t *)a[0], (int)a[1], (uint32_t)a[2], (const struct timespec *)a[3]);
    if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE)
        wake((const void *)a[0], (int)a[2]);
    return real.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
