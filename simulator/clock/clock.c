/* A virtual clock for some processes. Preloaded into each of them, it advances only while all of their threads wait:
 *
 *   VIRTUAL_CLOCK=2:FILE LD_PRELOAD=.../libpthread.so.virtual:... program
 *
 * One thread of all these processes runs at a time. Its computation takes no virtual time, but for a little at each
 * read of the clock. When it sleeps or waits, the thread that is due next runs, and the clock is set to its time. So
 * the result of programs, drivers and limiters does not depend on the machine's speed and load. The clock does not
 * start before as many processes as VIRTUAL_CLOCK says have joined. At the last join it is at least at the machine's
 * time. FILE keeps the time for later processes. With VIRTUAL_SKEW=NS the time of day of a process is ahead of the
 * others' by NS, as on another node.
 *
 * A limiter finds libc's functions in libc's files by name, so that no preloaded library intercepts them
 * (limiters/core/libc.c). It searches libpthread's first, hence the name of this library. No limiter is built or linked
 * differently for it.
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

/* A read of the clock costs LOOK_NS, and the clock advances in steps of LOOKS_NS. A thread that has read it
 * PATIENT_LOOKS times without a wait is spinning: its reads cost more and more, up to LOOK_MOST_NS. */
#define LOOK_NS       UINT64_C(30)
#define LOOKS_NS      UINT64_C(3000)
#define PATIENT_LOOKS 64u
#define LOOK_MOST_NS  UINT64_C(4000)

/* Cost of a read of the processor's counter, which only spinning code does. */
#define COUNTER_NS UINT64_C(10000)

/* The wake-up of a thread takes WAKE_NS, and up to MORE_NS more. */
#define WAKE_NS 20000u
#define MORE_NS 30000u

/* A lock that is held is tried again after TRY_NS. The delay doubles up to TRY_MOST_NS. */
#define TRY_NS      UINT64_C(1000)
#define TRY_MOST_NS UINT64_C(64000)

/* A waiting thread checks the running one every WATCH_NS of real time. If the running one sleeps in the kernel for
 * STUCK checks, and not for a disk, the others run without it. If it is dead, they do so at once. */
#define WATCH_NS INT64_C(20000000)
#define STUCK    25u

enum state { FREE, WAITS, RUNS, ASTRAY };

/* A thread. All fields but `run_count` are guarded by the lock. */
struct task {
    enum state state;
    int process, thread; /* thread 0: not started */
    pthread_t thread_handle;
    uint64_t wakes_ns, wake_order; /* when it runs again, and the order of tasks with the same time */
    const void *awaited_word;      /* address that it waits for, in its process */
    bool is_woken;
    uint32_t run_count; /* how often it has run; a futex */
};

/* The file. */
static struct clock {
    uint32_t lock_word, joined_processes; /* joined_processes: a futex */
    int32_t running_task;                 /* index in tasks; -1: no task runs */
    uint64_t now_ns, to_realtime_ns, last_wake_order, run_changes, random_state;
    struct task tasks[TASKS];
} *shared;

static pid_t own_pid;
/* How much the time of day of this process is ahead of the others'. */
static uint64_t skew_ns;
static __thread int own_task = -1;    /* index in tasks; -1: not joined */
static __thread uint64_t looks_ns;    /* cost of this thread's reads since the clock advanced */
static __thread unsigned look_count;  /* this thread's reads since its last wait */
static __thread bool has_woken_other; /* another task was chosen to run, and must be woken */
static pthread_key_t thread_end_key;

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

/* Called before the first use of any of them. */
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
    struct timespec time;
    real.clock_gettime(clock, &time);
    return ns_of(&time);
}

/* --------------------------------------------------------------------------------------------------------- who runs */

static void lock(void)
{
    while (__atomic_exchange_n(&shared->lock_word, 1, __ATOMIC_ACQUIRE))
        real.sched_yield();
}

/* Releases the lock, then wakes the chosen task, which would find the lock held before. */
static void unlock(void)
{
    uint32_t *run_count = has_woken_other ? &shared->tasks[shared->running_task].run_count : NULL;
    has_woken_other = false;
    __atomic_store_n(&shared->lock_word, 0, __ATOMIC_RELEASE);
    if (run_count != NULL)
        real.syscall(SYS_futex, run_count, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static uint64_t wake_latency(void)
{
    shared->random_state = shared->random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return WAKE_NS + (shared->random_state >> 33) % MORE_NS;
}

/* No task runs: chooses the one that is due next. Lock held. */
static void pass_on(void)
{
    struct task *next_task = NULL;
    for (struct task *task = shared->tasks; task < shared->tasks + TASKS; task++)
        if (task->state == WAITS && task->wakes_ns != NEVER &&
            (next_task == NULL || task->wakes_ns < next_task->wakes_ns ||
             (task->wakes_ns == next_task->wakes_ns && task->wake_order < next_task->wake_order)))
            next_task = task;
    shared->running_task = next_task == NULL ? -1 : (int32_t)(next_task - shared->tasks);
    if (next_task == NULL)
        return;
    shared->now_ns = next_task->wakes_ns > shared->now_ns ? next_task->wakes_ns : shared->now_ns;
    shared->run_changes++;
    next_task->state = RUNS;
    next_task->awaited_word = NULL;
    __atomic_add_fetch(&next_task->run_count, 1, __ATOMIC_RELEASE);
    has_woken_other = shared->running_task != own_task;
}

/* State letter of /proc; 'Z' also if the thread does not exist. */
static char state_of(int process, int thread)
{
    char path[64], status_text[512] = "";
    if (thread == 0)
        return 'R';
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t byte_count = fd < 0 ? 0 : read(fd, status_text, sizeof status_text - 1);
    if (fd >= 0)
        close(fd);
    const char *name_end = byte_count > 0 ? strrchr(status_text, ')') : NULL;
    return name_end == NULL ? 'Z' : name_end[2];
}

/* Lock held. */
static void forget_dead(void)
{
    for (struct task *task = shared->tasks; task < shared->tasks + TASKS; task++)
        if (task->state != FREE && state_of(task->process, task->thread == 0 ? task->process : task->thread) == 'Z')
            task->state = FREE;
}

/* A killed thread does not report its end, and a thread that reads from a pipe waits for a process without this
 * clock. */
static void check_running(uint64_t *last_run_changes, unsigned *unchanged_looks)
{
    lock();
    const struct task *task = shared->running_task < 0 ? NULL : &shared->tasks[shared->running_task];
    char state = task == NULL ? 'R' : state_of(task->process, task->thread);
    *unchanged_looks = state != 'R' && state != 'D' && *last_run_changes == shared->run_changes ? *unchanged_looks + 1
                                                                                                : 0;
    *last_run_changes = shared->run_changes;
    if (*unchanged_looks >= STUCK || state == 'Z') {
        shared->tasks[shared->running_task].state = ASTRAY;
        forget_dead();
        pass_on();
    }
    unlock();
}

static void wait_to_run(uint32_t run_count_before)
{
    uint32_t *run_count = &shared->tasks[own_task].run_count;
    const struct timespec timeout = {.tv_nsec = WATCH_NS};
    uint64_t run_changes = 0;
    unsigned unchanged_looks = 0;
    while (__atomic_load_n(run_count, __ATOMIC_ACQUIRE) == run_count_before)
        if (real.syscall(SYS_futex, run_count, FUTEX_WAIT, run_count_before, &timeout, NULL, 0) != 0 &&
            errno == ETIMEDOUT)
            check_running(&run_changes, &unchanged_looks);
}

/* Lets the others run until the time, or until the word is woken. Whether it was woken. */
static bool wait_until(uint64_t until_ns, const void *awaited_word)
{
    int saved_errno = errno;
    struct task *task = &shared->tasks[own_task];
    lock();
    uint32_t run_count_before = task->run_count;
    bool was_running = task->state == RUNS;
    task->wakes_ns = until_ns;
    task->wake_order = ++shared->last_wake_order;
    task->awaited_word = awaited_word;
    task->is_woken = false;
    task->state = WAITS;
    looks_ns = look_count = 0;
    if (was_running || shared->running_task < 0)
        pass_on();
    unlock();
    wait_to_run(run_count_before);
    errno = saved_errno;
    return task->is_woken;
}

/* Whether this thread uses the virtual clock; then it runs. */
static bool is_task(void)
{
    find_real();
    if (own_task < 0)
        return false;
    if (shared->tasks[own_task].state != RUNS)
        wait_until(shared->now_ns, NULL);
    return true;
}

static uint64_t virtual_now_ns(void)
{
    return shared->now_ns + looks_ns;
}

/* Wakes up to max_count threads of this process that wait for the word. */
static void wake(const void *awaited_word, int max_count)
{
    if (shared == NULL)
        return;
    lock();
    for (struct task *task = shared->tasks; task < shared->tasks + TASKS && max_count > 0; task++)
        if (task->state == WAITS && task->awaited_word == awaited_word && task->process == own_pid) {
            uint64_t at_ns = virtual_now_ns() + wake_latency();
            task->wakes_ns = at_ns < task->wakes_ns ? at_ns : task->wakes_ns;
            task->awaited_word = NULL;
            task->is_woken = true;
            max_count--;
        }
    if (shared->running_task < 0)
        pass_on();
    unlock();
}

static void sleep_for(uint64_t ns)
{
    wait_until(virtual_now_ns() + ns, NULL);
}

/* Sleeps with the thread's timer slack. Most threads' timers are late, so that several expire together. */
static void sleep_until(uint64_t until_ns)
{
    int slack_ns = prctl(PR_GET_TIMERSLACK);
    wait_until((until_ns > virtual_now_ns() ? until_ns : virtual_now_ns()) + (uint64_t)(slack_ns > 0 ? slack_ns : 0) +
                   2000,
               NULL);
}

/* A lock without a wait address is tried until it is free. */
#define TRY(attempt)                                                                                                   \
    for (uint64_t ns = TRY_NS; (attempt) == EBUSY; ns = ns < TRY_MOST_NS ? 2 * ns : ns)                                \
    sleep_for(ns)

/* -------------------------------------------------------------------------------------------------------- who joins */

/* Lock held. -1: there are TASKS tasks. */
static int new_task(int thread, uint64_t wakes_ns)
{
    for (unsigned slot = 0; slot < TASKS; slot++)
        if (shared->tasks[slot].state == FREE) {
            shared->tasks[slot] = (struct task){.state = WAITS,
                                                .process = own_pid,
                                                .thread = thread,
                                                .wakes_ns = wakes_ns,
                                                .wake_order = ++shared->last_wake_order,
                                                .run_count = shared->tasks[slot].run_count};
            return (int)slot;
        }
    return -1;
}

/* Runs at a thread's end. */
static void end_task(void *unused)
{
    (void)unused;
    if (!is_task())
        return;
    lock();
    shared->tasks[own_task].state = FREE;
    own_task = -1;
    pass_on();
    unlock();
}

/* The first process after all others have ended starts again. Lock held. */
static void begin(void)
{
    forget_dead();
    for (unsigned slot = 0; slot < TASKS; slot++)
        if (shared->tasks[slot].state != FREE)
            return;
    shared->joined_processes = 0;
    shared->running_task = -1;
    shared->random_state = 1;
}

/* All have joined. The clock continues where the processes before left it, or at the real time if that is later.
 * Work of a driver that was called in real time meanwhile has advanced its card's clock; new work would wait until
 * the virtual clock is there. Lock held. */
static void set_off(void)
{
    uint64_t at_ns = real_ns(CLOCK_MONOTONIC);
    shared->now_ns = at_ns > shared->now_ns ? at_ns : shared->now_ns;
    shared->to_realtime_ns = real_ns(CLOCK_REALTIME) - at_ns;
    pass_on();
}

/* Waits until process_count processes have joined. */
static void join(uint32_t process_count)
{
    lock();
    begin();
    own_task = new_task(getpid(), shared->now_ns);
    uint32_t run_count_before = shared->tasks[own_task].run_count,
             joined_count = __atomic_add_fetch(&shared->joined_processes, 1, __ATOMIC_RELEASE);
    if (joined_count == process_count)
        set_off();
    unlock();
    real.syscall(SYS_futex, &shared->joined_processes, FUTEX_WAKE, TASKS, NULL, NULL, 0);
    while ((joined_count = __atomic_load_n(&shared->joined_processes, __ATOMIC_ACQUIRE)) < process_count)
        real.syscall(SYS_futex, &shared->joined_processes, FUTEX_WAIT, joined_count, NULL, NULL, 0);
    wait_to_run(run_count_before);
}

static uint64_t look_at_clock(uint64_t look_ns)
{
    unsigned doubling_count = look_count < PATIENT_LOOKS ? 0 : (look_count - PATIENT_LOOKS) / 8,
             next_look_count = look_count + 1;
    uint64_t longer_ns = LOOK_NS << (doubling_count < 16 ? doubling_count : 16);
    longer_ns = longer_ns < LOOK_MOST_NS ? longer_ns : LOOK_MOST_NS;
    looks_ns += look_ns > longer_ns ? look_ns : longer_ns;
    if (looks_ns >= LOOKS_NS)
        sleep_for(0);
    look_count = next_look_count;
    return virtual_now_ns();
}

/* The processor's counter is virtual, too: loops that wait by it would never end. */
#ifdef __x86_64__
static void count(int signal_number, siginfo_t *unused, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)registers[REG_RIP];
    bool is_short = instruction[0] == 0x0f && instruction[1] == 0x31,
         is_long = instruction[0] == 0x0f && instruction[1] == 0x01 && instruction[2] == 0xf9;
    (void)unused;
    if (!is_short && !is_long) {
        signal(signal_number, SIG_DFL); /* the instruction is run again, with the default effect */
        return;
    }
    uint64_t counter = is_task() ? look_at_clock(COUNTER_NS) : 0;
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

/* A forked child uses the real time. */
static void leave_in_child(void)
{
    own_task = -1;
    shared = NULL;
    leave_counter();
}

__attribute__((constructor)) static void start(void)
{
    uint32_t process_count;
    char path[4096];
    const char *setting = getenv("VIRTUAL_CLOCK"), *skew_setting = getenv("VIRTUAL_SKEW");
    find_real();
    if (setting == NULL || sscanf(setting, "%u:%4095s", &process_count, path) != 2)
        return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *mapping = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof *shared) == 0)
        mapping = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED || pthread_key_create(&thread_end_key, end_task) != 0) {
        fprintf(stderr, "%s: no virtual clock: %s\n", path, strerror(errno));
        abort();
    }
    close(fd);
    unsetenv("VIRTUAL_CLOCK"); /* programs that it starts run in real time */
    skew_ns = skew_setting != NULL ? strtoull(skew_setting, NULL, 10) : 0;
    pthread_atfork(NULL, NULL, leave_in_child);
    shared = mapping;
    own_pid = getpid();
    join(process_count);
    take_counter();
}

/* ---------------------------------------------------------------------------------------------------- what is asked */

static bool is_of_processor(clockid_t clock)
{
    return clock < 0 || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
}

/* Nanoseconds to add for the time of day. */
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
    *time = time_of(look_at_clock(LOOK_NS) + (is_of_day(clock) ? to_realtime() : 0));
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec current;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &current);
    *time = (struct timeval){current.tv_sec, current.tv_nsec / 1000};
    return 0;
}

EXPORT int nanosleep(const struct timespec *time, struct timespec *remaining)
{
    if (!is_task())
        return real.nanosleep(time, remaining);
    sleep_until(virtual_now_ns() + ns_of(time));
    return 0;
}

EXPORT int usleep(useconds_t us)
{
    return nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* A time of day is much larger than a time since the machine's start. */
static uint64_t absolute(const struct timespec *time)
{
    uint64_t ns = ns_of(time);
    return ns > to_realtime() / 2 ? ns - to_realtime() : ns;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *remaining)
{
    if (!is_task())
        return real.clock_nanosleep(clock, flags, time, remaining);
    sleep_until(flags & TIMER_ABSTIME ? absolute(time) : virtual_now_ns() + ns_of(time));
    return 0;
}

EXPORT int sched_yield(void)
{
    if (!is_task())
        return real.sched_yield();
    sleep_for(TRY_NS);
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

EXPORT int pthread_rwlock_rdlock(pthread_rwlock_t *rwlock)
{
    int answer;
    if (!is_task())
        return real.pthread_rwlock_rdlock(rwlock);
    TRY(answer = pthread_rwlock_tryrdlock(rwlock));
    return answer;
}

EXPORT int pthread_rwlock_wrlock(pthread_rwlock_t *rwlock)
{
    int answer;
    if (!is_task())
        return real.pthread_rwlock_wrlock(rwlock);
    TRY(answer = pthread_rwlock_trywrlock(rwlock));
    return answer;
}

/* A wait for a file lock is in virtual time, too: the holder may wait for the clock. */
EXPORT int fcntl64(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    find_real();
    bool is_blocking = command == F_OFD_SETLKW || command == F_SETLKW;
    if (!is_blocking || !is_task())
        return real.fcntl64(fd, command, argument);
    int nonblocking_command = command == F_SETLKW ? F_SETLK : F_OFD_SETLK, answer;
    while ((answer = real.fcntl64(fd, nonblocking_command, argument)) != 0 && (errno == EAGAIN || errno == EACCES))
        sleep_for(TRY_MOST_NS);
    return answer;
}

EXPORT int fcntl(int file, int command, ...) __attribute__((alias("fcntl64")));

EXPORT int flock(int fd, int operation)
{
    int answer;
    if (!is_task() || (operation & LOCK_NB))
        return real.flock(fd, operation);
    while ((answer = real.flock(fd, operation | LOCK_NB)) != 0 && errno == EWOULDBLOCK)
        sleep_for(TRY_MOST_NS);
    return answer;
}

static int wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until_ns)
{
    pthread_mutex_unlock(mutex); /* no other task runs before this one waits */
    bool is_woken = wait_until(until_ns, condition);
    pthread_mutex_lock(mutex);
    return is_woken ? 0 : ETIMEDOUT;
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

/* The signal of the processor's counter is never blocked: that would end the process. */
EXPORT int pthread_sigmask(int how, const sigset_t *restrict set, sigset_t *restrict old_set)
{
    sigset_t set_without_segv;
    find_real();
    if (set != NULL && how != SIG_UNBLOCK) {
        set_without_segv = *set;
        sigdelset(&set_without_segv, SIGSEGV);
        set = &set_without_segv;
    }
    return real.pthread_sigmask(how, set, old_set);
}

struct thread_start {
    void *(*run)(void *);
    void *argument;
    int task;
    uint32_t run_count;
};

static void *begin_thread(void *argument)
{
    struct thread_start start = *(struct thread_start *)argument;
    free(argument);
    own_task = start.task;
    shared->tasks[own_task].thread = (int)real.syscall(SYS_gettid);
    pthread_setspecific(thread_end_key, shared);
    wait_to_run(start.run_count);
    return start.run(start.argument);
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    struct thread_start *start = is_task() ? malloc(sizeof *start) : NULL;
    if (start == NULL)
        return real.pthread_create(thread, attributes, run, argument);
    lock();
    int task = new_task(0, virtual_now_ns() + wake_latency());
    unlock();
    if (task < 0)
        abort();
    *start = (struct thread_start){run, argument, task, shared->tasks[task].run_count};
    int answer = real.pthread_create(thread, attributes, begin_thread, start);
    if (answer == 0)
        shared->tasks[task].thread_handle = *thread;
    else
        shared->tasks[task].state = FREE;
    return answer;
}

static bool is_alive(pthread_t thread)
{
    for (unsigned slot = 0; slot < TASKS; slot++) {
        const struct task *task = &shared->tasks[slot];
        if (task->state != FREE && task->process == own_pid && pthread_equal(task->thread_handle, thread))
            return true;
    }
    return false;
}

EXPORT int pthread_join(pthread_t thread, void **result)
{
    while (is_task() && is_alive(thread))
        sleep_for(TRY_MOST_NS);
    return real.pthread_join(thread, result);
}

/* A waiter for a word that other processes share polls it, since it may be woken without a change. */
static long wait_for_word(const uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    uint64_t until_ns = timeout == NULL ? NEVER : virtual_now_ns() + ns_of(timeout);
    bool is_shared = !(operation & FUTEX_PRIVATE_FLAG), must_wait = __atomic_load_n(word, __ATOMIC_SEQ_CST) == value;
    if (is_shared && until_ns > virtual_now_ns() + TRY_MOST_NS)
        until_ns = virtual_now_ns() + TRY_MOST_NS;
    if (must_wait && (wait_until(until_ns, word) || is_shared))
        return 0;
    errno = must_wait ? ETIMEDOUT : EAGAIN;
    return -1;
}

EXPORT long syscall(long number, ...)
{
    long values[6];
    va_list arguments;
    va_start(arguments, number);
    for (unsigned index = 0; index < sizeof values / sizeof *values; index++)
        values[index] = va_arg(arguments, long);
    va_end(arguments);
    find_real();
    if (number == SYS_futex && (values[1] & FUTEX_CMD_MASK) == FUTEX_WAIT && is_task())
        return wait_for_word((const uint32_t *)values[0], (int)values[1], (uint32_t)values[2],
                             (const struct timespec *)values[3]);
    if (number == SYS_futex && (values[1] & FUTEX_CMD_MASK) == FUTEX_WAKE)
        wake((const void *)values[0], (int)values[2]);
    return real.syscall(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
