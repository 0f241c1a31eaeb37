/* The machine of virtual.h: a scheduler of coroutines, and beneath it what of the kernel the core uses. */
/* The system's own, by their own names. */
#undef clock_gettime
#undef close
#undef fcntl
#undef madvise
#undef mmap
#undef munmap
#undef nanosleep
#undef open
#undef pread
#undef pthread_create
#undef pthread_sigmask
#undef syscall

#include "h200.h"
#include "virtual.h"

#include "../../../limiters/timeshare/budget.h"
#include "../../../limiters/timeshare/gate.h"
#include "../../../limiters/core/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define NEVER UINT64_MAX

enum {
    TASKS = 4 * TENANTS,
    STACK = 64 * 1024,
    LOCALS = 2048,
    LOCKS = 32 * TENANTS,
    FENCES = 64 * TENANTS,
    OPEN = 32 * TENANTS
};

/* Descriptors of files that only this machine has begin here, and their paths so: /virtual/GRANT/NAME. */
#define FIRST_FILE (1 << 20)
#define ROOT       "/virtual/"

/* A task that does so much at one point in time never lets it pass. */
#define STEPS_MOST 100000u

/* A sleep is so much longer than it was asked to be, for a thread that asked for better than 50 us; unless the machine
 * has worse timers. */
#define TIMER_NS (3 * US)

/* What is read off a clock is so old at most when it is used. */
#define AGES_NS (20 * US)

static struct task {
    ucontext_t context;    /* where it begins */
    void *goes_on[5];      /* where it goes on once it has begun */
    struct tenant *tenant; /* whose process it is in */
    void *(*run)(void *);
    void *argument;
    uint64_t wakes_ns; /* when it goes on, NEVER: when it is woken */
    const void *word;  /* the futex that it waits for */
    bool dead, stopped, woken, begun;
    bool rested;         /* a governor, since it last read its clock */
    char locals[LOCALS]; /* its thread-locals, while another's are in their place */
} tasks[TASKS];

/* Of each task; kept from one machine to the next. */
static char stacks[TASKS][STACK] __attribute__((aligned(16)));

static struct {
    unsigned tasks, locks, refused_threads, preempts;
    uint64_t now_ns, timer_ns, poll_ns, ages_ns;
    unsigned met_percent; /* of the holds beside others meet a turn of theirs */
    int64_t wall_ns;      /* how far CLOCK_REALTIME is ahead */
    uint64_t card_ns;     /* until when the cards have worked */
    struct card {
        uint64_t idle_ns;       /* until then it goes over from one to another */
        uint64_t time_slice_ns; /* when it looks whether another is to run */
        uint64_t worked_ns;     /* how long it has worked for the one that runs */
        struct tenant *runs;    /* whose time slice it is */
    } cards[CARDS];
    struct tenant *tenants[TENANTS]; /* all that were ever started */
    unsigned tenant_count;
    bool several; /* there is a program on another card than the first */
    bool serves;  /* a service runs all of them at the same time */
    uint64_t rng;
    struct file {
        ino_t inode;
        void *bytes;
        size_t size;
    } boards[CARDS], page_files[TENANTS][CARDS], usages[TENANTS];
    const struct file *open[OPEN];
    bool mapped[OPEN], closed[OPEN]; /* a mapping keeps it open, which nothing but its end closes then */
    const void *grants[TENANTS];     /* what tells grants apart */
    unsigned grant_count;
    struct hetero_board board[CARDS];
    union {
        struct hetero_page said;
        char whole[HETERO_PAGE_BYTES];
    } pages[TENANTS][CARDS];
    double drawn, filtered; /* milliwatt: on average of this millisecond, and what a sample would be */
    struct power_reading power;
    struct task *task;       /* the one that runs; NULL: the caller of machine_run */
    struct task *has_locals; /* whose thread-locals are in their place; NULL: the caller's */
    void *caller[5];
    struct {
        const struct file *of;
        int file, byte;
        short type;
    } lock[LOCKS];
    struct fence {
        uint64_t at_ns;        /* of its tenant's work */
        struct tenant *tenant; /* NULL: to be had */
        unsigned stream;
        unsigned stops; /* of its stream, before it */
    } fence[FENCES];
    struct held {
        struct tenant *tenant;       /* NULL: to be had */
        bool on;                     /* what was launched after `from_ns` waits */
        uint64_t from_ns, to_ns;     /* of its tenant's work: the hold, and the last stamp */
        uint64_t begun_ns, ended_ns; /* when the card passed them; 0: it has not */
        uint64_t launched, launches; /* when it was held; and since, up to the stamp */
        unsigned stamps;
    } held[TENANTS];
} machine;

static void demand(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "virtual machine: %s\n", what);
    abort();
}

/* Waking a thread takes 50 to 200 us where many virtual machines share a host. */
static uint64_t wake_latency_ns(void)
{
    machine.rng = machine.rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return 50 * US + (machine.rng >> 33) % (150 * US);
}

/* -------------------------------------------------------------------------------------------------------- the tasks */

/* Tasks are left by the compiler's own jump, because swapcontext makes a system call each time; and unknown to a
 * sanitizer of addresses, which would make two and forget all functions on the stack, though a jump skips none. No
 * caller may rely on what registers such a function leaves alone: other tasks run before it returns. */
#define JUMPS __attribute__((noipa, noinline, no_sanitize_address))

/* By itself, because a function that jumps cannot be come back to. */
static JUMPS void jump(void **to)
{
    __builtin_longjmp(to, 1);
}

static JUMPS void leave(struct task *task)
{
    if (__builtin_setjmp(task->goes_on) == 0)
        jump(machine.caller);
}

static void task_main(void)
{
    machine.task->run(machine.task->argument);
    machine.task->dead = true;
    leave(machine.task);
}

/* The thread-locals of this program. A task has its own, which are where every other's are. */
static int find_locals(struct dl_phdr_info *object, size_t size, void *found_)
{
    (void)size;
    for (unsigned n = 0; n < object->dlpi_phnum; n++)
        if (object->dlpi_phdr[n].p_type == PT_TLS)
            *(struct iovec *)found_ = (struct iovec){.iov_base = object->dlpi_tls_data,
                                                     .iov_len = object->dlpi_phdr[n].p_memsz};
    return 1; /* the first object is the program */
}

/* Have the thread-locals of a task in their place, or the caller's: those that were there lie with whose they are. */
static void place_locals(struct task *task)
{
    static struct iovec in_place;
    static char callers[LOCALS];
    if (in_place.iov_base == NULL)
        dl_iterate_phdr(find_locals, &in_place);
    demand(in_place.iov_base != NULL && in_place.iov_len <= LOCALS, "thread-locals of another size");
    if (machine.has_locals == task)
        return;
    memcpy(machine.has_locals != NULL ? machine.has_locals->locals : callers, in_place.iov_base, in_place.iov_len);
    memcpy(in_place.iov_base, task != NULL ? task->locals : callers, in_place.iov_len);
    machine.has_locals = task;
}

static JUMPS void go_on(struct task *task)
{
    machine.task = task;
    place_locals(task);
    if (__builtin_setjmp(machine.caller) == 0) {
        if (task->begun)
            jump(task->goes_on);
        task->begun = true;
        setcontext(&task->context);
    }
    machine.task = NULL;
}

static void task_prepare(struct task *task)
{
    ASAN_UNPOISON_MEMORY_REGION(stacks[task - tasks], STACK); /* whoever was killed on it left no function */
    getcontext(&task->context);
    task->context.uc_stack.ss_sp = stacks[task - tasks];
    task->context.uc_stack.ss_size = STACK;
    makecontext(&task->context, task_main, 0);
}

static void task_new(struct tenant *tenant, void *(*run)(void *), void *argument, uint64_t at_ns)
{
    struct task *task = tasks;
    while (task < tasks + machine.tasks && !task->dead)
        task++;
    demand(task < tasks + TASKS, "too many tasks");
    if (task == tasks + machine.tasks)
        machine.tasks++;
    *task = (struct task){.tenant = tenant, .run = run, .argument = argument, .wakes_ns = at_ns};
    task_prepare(task);
}

static void task_wait(uint64_t until_ns)
{
    struct task *task = machine.task;
    task->wakes_ns = until_ns;
    task->woken = false;
    leave(task);
}

static void task_wake(struct task *task)
{
    uint64_t at_ns = machine.now_ns + wake_latency_ns();
    task->woken = true;
    task->word = NULL;
    if (task->wakes_ns > at_ns)
        task->wakes_ns = at_ns;
}

static bool has_time_slice(const struct tenant *tenant)
{
    const struct time_slice *time_slice = tenant->governor == NULL ? NULL : &tenant->governor->time_slice;
    return time_slice != NULL && time_slice->is_ours && time_slice->pages.own_page->state >= PAGE_RUNS;
}

/* After a step of the tenant, in which its gate has opened once at most. */
static void note_time_slice(struct tenant *tenant)
{
    bool runs = tenant_runs(tenant);
    tenant->time_slices += runs && !tenant->ran;
    tenant->ran = runs;
    for (unsigned i = 0; has_time_slice(tenant) && i < machine.tenant_count; i++) {
        const struct tenant *other = machine.tenants[i];
        if (other != tenant && other->terms.priority == tenant->terms.priority && has_time_slice(other))
            tenant->beside |= UINT32_C(1) << i;
    }
}

bool machine_run(uint64_t ns)
{
    uint64_t end_ns = machine.now_ns + ns;
    unsigned steps = 0;
    for (;;) {
        struct task *next = NULL;
        for (struct task *task = tasks; task < tasks + machine.tasks; task++)
            if (!task->dead && !task->stopped && (next == NULL || task->wakes_ns < next->wakes_ns))
                next = task;
        if (next == NULL || next->wakes_ns > end_ns)
            break;
        steps = next->wakes_ns > machine.now_ns ? 0 : steps + 1;
        if (steps > STEPS_MOST)
            break;
        if (next->wakes_ns > machine.now_ns)
            machine.now_ns = next->wakes_ns;
        go_on(next);
        note_time_slice(next->tenant);
    }
    place_locals(NULL);
    if (steps > STEPS_MOST)
        return false;
    machine.now_ns = end_ns;
    return true;
}

uint64_t machine_now(void)
{
    return machine.now_ns;
}

/* ------------------------------------------------------------------------------------------- what the core asks for */

int virtual_clock_gettime(clockid_t clock, struct timespec *time);
int virtual_nanosleep(const struct timespec *time, struct timespec *left);
int virtual_open(const char *path, int flags, ...);
int virtual_close(int number);
void *virtual_mmap(void *address, size_t size, int protection, int flags, int number, off_t offset);
int virtual_munmap(void *address, size_t size);
int virtual_madvise(void *address, size_t size, int advice);
ssize_t virtual_pread(int number, void *bytes, size_t size, off_t offset);
int virtual_fcntl(int file, int command, ...);
long virtual_syscall(long number, ...);
int virtual_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int virtual_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);

void machine_refuse_threads(unsigned count)
{
    machine.refused_threads = count;
}

void machine_preempt(unsigned one_of)
{
    machine.preempts = one_of;
}

/* At a system call. */
static void may_be_preempted(void)
{
    if (machine.task == NULL || machine.preempts == 0)
        return;
    machine.rng = machine.rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    uint64_t rolled = machine.rng >> 33;
    if (rolled % machine.preempts != 0)
        return;
    rolled /= machine.preempts;
    task_wait(machine.now_ns + (5 + rolled % 100) * (rolled % 16 == 0 ? 20 * US : US));
}

void machine_delay_timers(uint64_t ns)
{
    machine.timer_ns = ns;
}

void machine_poll(uint64_t ns)
{
    machine.poll_ns = ns;
}

void machine_age_clocks(uint64_t ns)
{
    machine.ages_ns = ns;
}

void machine_meet_turns(unsigned percent)
{
    machine.met_percent = percent;
}

void machine_serve(void)
{
    machine.serves = true;
}

static uint64_t task_now(void)
{
    return machine.now_ns + (uint64_t)machine.task->tenant->skew_ns;
}

int virtual_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (machine.task == NULL)
        return clock_gettime(clock, time);
    uint64_t wall_ns = machine.now_ns + (uint64_t)(machine.wall_ns + machine.task->tenant->wall_skew_ns);
    uint64_t now = clock == CLOCK_REALTIME ? wall_ns : task_now();
    *time = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
    return 0;
}

int virtual_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (machine.task == NULL)
        return nanosleep(time, left);
    task_wait(machine.now_ns + (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec + machine.timer_ns);
    return 0;
}

int virtual_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (machine.task == NULL)
        return pthread_create(thread, attributes, run, argument);
    if (machine.refused_threads > 0) {
        machine.refused_threads--;
        return EAGAIN;
    }
    *thread = pthread_self(); /* only ever detached */
    task_new(machine.task->tenant, run, argument, machine.now_ns + wake_latency_ns());
    return 0;
}

/* There are no signals. */
int virtual_pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    return machine.task == NULL ? pthread_sigmask(how, set, before) : 0;
}

static int status_of(int number, struct stat *found);

static long wait_for_word(const _Atomic uint32_t *word, uint32_t value, const struct timespec *timeout)
{
    may_be_preempted();
    if (atomic_load(word) != value)
        return EAGAIN;
    struct task *task = machine.task;
    task->word = (const void *)word;
    task_wait(timeout == NULL ? NEVER
                              : machine.now_ns + (uint64_t)timeout->tv_sec * 1000000000 + (uint64_t)timeout->tv_nsec);
    task->word = NULL;
    return task->woken ? 0 : ETIMEDOUT;
}

static long wake_those_at(const void *word, unsigned most)
{
    unsigned woken = 0;
    for (struct task *task = tasks; task < tasks + machine.tasks && woken < most; task++)
        if (!task->dead && task->word == word) {
            task_wake(task);
            woken++;
        }
    return woken;
}

/* Only futexes are asked for. */
long virtual_syscall(long number, ...)
{
    va_list arguments;
    va_start(arguments, number);
    if (number == SYS_fstat) {
        int file = va_arg(arguments, int);
        struct stat *found = va_arg(arguments, struct stat *);
        va_end(arguments);
        return status_of(file, found);
    }
    _Atomic uint32_t *word = va_arg(arguments, _Atomic uint32_t *);
    int operation = va_arg(arguments, int);
    uint32_t value = va_arg(arguments, uint32_t);
    const struct timespec *timeout = va_arg(arguments, const struct timespec *);
    va_end(arguments);
    demand(number == SYS_futex, "a system call that it does not know");
    if (machine.task == NULL)
        return syscall(number, word, operation, value, timeout, NULL, 0);
    if ((operation & FUTEX_CMD_MASK) == FUTEX_WAKE)
        return wake_those_at(word, value);
    long failed = wait_for_word(word, value, timeout);
    errno = failed ? (int)failed : errno;
    return failed ? -1 : 0;
}

static const struct file *file_of(int number)
{
    unsigned at = (unsigned)number - FIRST_FILE;
    return number >= FIRST_FILE && at < OPEN ? machine.open[at] : NULL;
}

static const struct file *find_file(const char *path)
{
    char name[32];
    unsigned grant, other, card;
    int end = 0;
    if (sscanf(path, ROOT "%u/%31s", &grant, name) != 2 || grant >= TENANTS)
        return NULL;
    if (strcmp(name, "usage") == 0)
        return &machine.usages[grant];
    if (sscanf(name, "page.%u", &card) == 1 && card < CARDS)
        return &machine.page_files[grant][card];
    if (sscanf(name, "board.%u/%n", &card, &end) != 1 || end == 0 || card >= CARDS)
        return NULL;
    if (strcmp(name + end, "board") == 0)
        return &machine.boards[card];
    return sscanf(name + end, "%u", &other) == 1 && other < TENANTS ? &machine.page_files[other][card] : NULL;
}

int virtual_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (strncmp(path, ROOT, sizeof ROOT - 1) != 0)
        return open(path, flags, mode);
    const struct file *file = find_file(path);
    if (file == NULL) {
        errno = ENOENT;
        return -1;
    }
    unsigned at = 0;
    while (at < OPEN && machine.open[at] != NULL)
        at++;
    demand(at < OPEN, "too many open files");
    machine.open[at] = file;
    return FIRST_FILE + (int)at;
}

static int status_of(int number, struct stat *found)
{
    if (number < FIRST_FILE)
        return fstat(number, found);
    const struct file *file = file_of(number);
    if (file == NULL) {
        errno = EBADF;
        return -1;
    }
    *found = (struct stat){.st_mode = S_IFREG | 0666, .st_dev = 1, .st_ino = file->inode, .st_size = (off_t)file->size};
    return 0;
}

/* One that is not to be read keeps the file open, and its address tells which. */
void *virtual_mmap(void *address, size_t size, int protection, int flags, int number, off_t offset)
{
    if (number < FIRST_FILE)
        return mmap(address, size, protection, flags, number, offset);
    if (file_of(number) == NULL)
        return MAP_FAILED;
    if (protection != PROT_NONE)
        return file_of(number)->bytes;
    machine.mapped[number - FIRST_FILE] = true;
    return &machine.mapped[number - FIRST_FILE];
}

static bool is_virtual(const void *address)
{
    const char *from = (const char *)&machine, *at = address;
    return at >= from && at < from + sizeof machine;
}

int virtual_munmap(void *address, size_t size)
{
    if (!is_virtual(address))
        return munmap(address, size);
    ptrdiff_t at = (bool *)address - machine.mapped;
    if (at >= 0 && at < OPEN) {
        machine.mapped[at] = false;
        if (machine.closed[at])
            virtual_close(FIRST_FILE + (int)at);
    }
    return 0;
}

int virtual_madvise(void *address, size_t size, int advice)
{
    return is_virtual(address) ? 0 : madvise(address, size, advice);
}

ssize_t virtual_pread(int number, void *bytes, size_t size, off_t offset)
{
    if (number < FIRST_FILE)
        return pread(number, bytes, size, offset);
    may_be_preempted();
    const struct file *file = file_of(number);
    if (file == NULL || offset < 0) {
        errno = EBADF;
        return -1;
    }
    size_t from = (size_t)offset < file->size ? (size_t)offset : file->size;
    size = size < file->size - from ? size : file->size - from;
    memcpy(bytes, (const char *)file->bytes + from, size);
    return (ssize_t)size;
}

/* An open file description has its locks, whatever process it is in. */
static bool conflicts(unsigned held, int file, int byte, short type)
{
    return machine.lock[held].byte == byte && machine.lock[held].of == file_of(file) &&
           machine.lock[held].file != file && (type == F_WRLCK || machine.lock[held].type == F_WRLCK);
}

static void drop_lock(unsigned held)
{
    machine.lock[held] = machine.lock[--machine.locks];
}

static bool set_lock(int file, int byte, short type)
{
    for (unsigned i = 0; i < machine.locks; i++)
        if (type != F_UNLCK && conflicts(i, file, byte, type))
            return false;
    for (unsigned i = 0; i < machine.locks; i++)
        if (machine.lock[i].file == file && machine.lock[i].byte == byte) {
            drop_lock(i);
            break;
        }
    if (type == F_UNLCK)
        return true;
    demand(machine.locks < LOCKS, "too many locks");
    machine.lock[machine.locks].of = file_of(file);
    machine.lock[machine.locks].file = file;
    machine.lock[machine.locks].byte = byte;
    machine.lock[machine.locks++].type = type;
    return true;
}

int virtual_close(int number)
{
    if (number < FIRST_FILE)
        return close(number);
    machine.closed[number - FIRST_FILE] = machine.mapped[number - FIRST_FILE];
    if (machine.closed[number - FIRST_FILE])
        return 0;
    for (unsigned i = machine.locks; i-- > 0;)
        if (machine.lock[i].file == number)
            drop_lock(i);
    demand(file_of(number) != NULL, "a file is closed twice");
    machine.open[number - FIRST_FILE] = NULL;
    return 0;
}

int virtual_fcntl(int file, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    struct flock *range = va_arg(arguments, struct flock *);
    va_end(arguments);
    if (file < FIRST_FILE)
        return fcntl(file, command, range);
    may_be_preempted();
    if (command == F_DUPFD_CLOEXEC) { /* there is no room above */
        errno = EINVAL;
        return -1;
    }
    int byte = (int)range->l_start, end = byte + (int)range->l_len;
    if (command == F_OFD_GETLK) {
        bool taken = false;
        for (unsigned i = 0; i < machine.locks && !taken; i++)
            taken = machine.lock[i].byte >= byte && machine.lock[i].byte < end &&
                    conflicts(i, file, machine.lock[i].byte, range->l_type);
        if (!taken)
            range->l_type = F_UNLCK;
        return 0;
    }
    demand(command == F_OFD_SETLK, "a command for locks that it does not know");
    for (int of = byte; of < end; of++)
        if (!set_lock(file, of, range->l_type)) {
            demand(of == byte, "a range of which a part is another's");
            errno = EAGAIN;
            return -1;
        }
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- the card */

/* How long the driver lets a context run while another has work, too; and how long the card does nothing when it goes
 * over from one to another. An H200 gives four busy processes 93 % of itself, in slices, and loses as much when tenants
 * hand it over each 10 ms; on an H100 four programs with a kernel of 5 us each 50 us lose nothing. So a short turn
 * loses a part of its length. */
#define TIME_SLICE_NS (2000 * US)
#define SWITCH_NS     (150 * US)
#define SWITCHES_PART 3u

/* What lies between two kernels in a row, and what an event of a stream takes besides (H100, 2026-11-25). */
#define BETWEEN_NS UINT64_C(930)
#define EVENT_NS   UINT64_C(2880)

/* A kernel that waits for a launch takes so long if none comes. */
#define ENDLESS_NS (3600000 * MS)

static uint64_t pending_ns(const struct tenant *tenant)
{
    return tenant->asked_ns - tenant->done_ns + tenant->side_asked_ns - tenant->side_done_ns;
}

static uint64_t *asked_of(struct tenant *tenant, unsigned stream)
{
    return stream == 0 ? &tenant->asked_ns : &tenant->side_asked_ns;
}

static uint64_t *done_of(struct tenant *tenant, unsigned stream)
{
    return stream == 0 ? &tenant->done_ns : &tenant->side_done_ns;
}

/* Where a stream waits next; NULL: nowhere. */
static struct stop *stop_of(struct tenant *tenant, unsigned stream)
{
    unsigned at = tenant->stop_at[stream];
    return tenant->stop_count[stream] == 0 ? NULL : &tenant->stops[stream][at % STOPS];
}

static bool stands(struct tenant *tenant, unsigned stream)
{
    const struct stop *stop = stop_of(tenant, stream);
    return stop != NULL && stop->at_ns == *done_of(tenant, stream);
}

/* Whether the card is kept by a kernel that waits for other processes. */
static bool spins(struct tenant *tenant)
{
    for (unsigned stream = 0; stream < STREAMS; stream++)
        if (stands(tenant, stream) && (stop_of(tenant, stream)->meets || stop_of(tenant, stream)->spins))
            return true;
    return false;
}

static struct held *held_of(const struct tenant *tenant)
{
    for (struct held *held = machine.held; held < machine.held + TENANTS; held++)
        if (held->tenant == tenant)
            return held;
    return NULL;
}

/* What the card can do of a stream now. */
static uint64_t ready_of(struct tenant *tenant, unsigned stream)
{
    const struct held *held = stream == 0 ? held_of(tenant) : NULL;
    uint64_t until_ns = *asked_of(tenant, stream);
    if (held != NULL && held->on && held->from_ns < until_ns)
        until_ns = held->from_ns;
    const struct stop *stop = stop_of(tenant, stream);
    if (stop != NULL && stop->at_ns < until_ns)
        until_ns = stop->at_ns;
    return until_ns - *done_of(tenant, stream);
}

/* Until the first of them has done that; 0: the card can do nothing of it. */
static uint64_t ready_ns(struct tenant *tenant)
{
    uint64_t one = ready_of(tenant, 0), other = ready_of(tenant, 1);
    return one == 0 || (other != 0 && other < one) ? other : one;
}

static bool has_work(struct tenant *tenant)
{
    return ready_ns(tenant) > 0 || spins(tenant);
}

/* What tells the processes that meet from others. */
static const void *group_of(const struct tenant *tenant)
{
    return tenant->meets != NULL ? tenant->meets : tenant->region;
}

static bool all_arrived(const struct tenant *tenant, const struct stop *stop)
{
    for (unsigned i = 0; i < machine.tenant_count; i++) {
        const struct tenant *other = machine.tenants[i];
        if (group_of(other) == group_of(tenant) && other->arrived[stop->communicator] < stop->until)
            return false;
    }
    return true;
}

/* Whether what a stream stands at is over. */
static bool is_over(struct tenant *tenant, struct stop *stop)
{
    if (stop->meets)
        return all_arrived(tenant, stop);
    if (stop->word != NULL)
        return *stop->word >= stop->until;
    if (stop->host_ns > 0 && stop->begun_ns == 0)
        stop->begun_ns = machine.card_ns;
    if (stop->host_ns > 0)
        return machine.card_ns - stop->begun_ns >= stop->host_ns;
    return *done_of(tenant, stop->communicator) >= stop->until;
}

/* When the first function on the host that streams stand at is over, by then at most. */
static uint64_t host_until(uint64_t to_ns)
{
    for (unsigned i = 0; i < machine.tenant_count; i++)
        for (unsigned stream = 0; stream < STREAMS; stream++) {
            const struct stop *stop = stop_of(machine.tenants[i], stream);
            if (stop == NULL || stop->host_ns == 0 || stop->begun_ns == 0)
                continue;
            uint64_t over_ns = stop->begun_ns + stop->host_ns;
            to_ns = over_ns > machine.card_ns && over_ns < to_ns ? over_ns : to_ns;
        }
    return to_ns;
}

/* Let streams go on that wait for nothing any more. */
static void pass_stops(void)
{
    for (bool passed = true; passed;) {
        passed = false;
        for (unsigned i = 0; i < machine.tenant_count; i++)
            for (unsigned stream = 0; stream < STREAMS; stream++) {
                struct tenant *tenant = machine.tenants[i];
                struct stop *stop = stop_of(tenant, stream);
                if (!stands(tenant, stream))
                    continue;
                /* A kernel of the collective runs only while its process has the card. */
                if (stop->meets && machine.cards[tenant->card].runs == tenant &&
                    tenant->arrived[stop->communicator] < stop->until) {
                    tenant->arrived[stop->communicator] = stop->until;
                    passed = true;
                }
                if (!is_over(tenant, stop))
                    continue;
                tenant->stop_at[stream]++;
                tenant->stop_count[stream]--;
                passed = true;
            }
    }
}

/* The card has done a tenant's work up to `done_ns` at that time. */
static void note_held(struct held *held, uint64_t done_ns, uint64_t at_ns)
{
    if (held == NULL || held->on)
        return;
    if (held->begun_ns == 0 && done_ns >= held->from_ns)
        held->begun_ns = at_ns - (done_ns - held->from_ns);
    if (held->ended_ns == 0 && done_ns >= held->to_ns)
        held->ended_ns = at_ns - (done_ns - held->to_ns);
}

/* The card draws so much until then, and tells it 4 ms late. */
static void draw(uint64_t at_ns, uint64_t to_ns, uint32_t mw)
{
    while (at_ns < to_ns) {
        uint64_t next_ns = (at_ns / MS + 1) * MS, until_ns = next_ns < to_ns ? next_ns : to_ns;
        machine.drawn += (double)mw * (double)(until_ns - at_ns) / 1e6;
        at_ns = until_ns;
        if (at_ns != next_ns)
            continue;
        h200_meter(&machine.power, &machine.filtered, machine.drawn, at_ns / MS, 4 * MS);
        machine.drawn = 0;
    }
}

/* Another than `tenant` that has work for a card, the next in order. */
static struct tenant *next_beside(const struct tenant *tenant, unsigned card)
{
    unsigned from = 0;
    while (from < machine.tenant_count && machine.tenants[from] != tenant)
        from++;
    for (unsigned i = 1; i <= machine.tenant_count; i++) {
        struct tenant *next = machine.tenants[(from + i) % machine.tenant_count];
        if (next != tenant && next->card == card && has_work(next))
            return next;
    }
    return NULL;
}

static void note_busy(struct tenant *tenant, uint64_t at_ns, uint64_t to_ns)
{
    bool works = false;
    machine.cards[tenant->card].worked_ns += to_ns - at_ns;
    for (unsigned stream = 0; stream < STREAMS; stream++)
        if (ready_of(tenant, stream) > 0) {
            *done_of(tenant, stream) += to_ns - at_ns;
            works = true;
        }
    if (!works) {
        tenant->spun_ns += to_ns - at_ns;
        return;
    }
    note_held(held_of(tenant), tenant->done_ns, to_ns);
    while (at_ns < to_ns) {
        uint64_t second = at_ns / 1000000000, next_ns = (second + 1) * 1000000000;
        uint64_t until_ns = next_ns < to_ns ? next_ns : to_ns;
        if (second < SECONDS)
            tenant->busy_ns[second] += until_ns - at_ns;
        at_ns = until_ns;
    }
}

/* Go over to another if it is time. */
static void card_choose(unsigned number, uint64_t at_ns)
{
    struct card *card = &machine.cards[number];
    struct tenant *other = at_ns < card->idle_ns ? NULL : next_beside(card->runs, number);
    if (other != NULL && (card->runs == NULL || !has_work(card->runs) || at_ns >= card->time_slice_ns)) {
        uint64_t part_ns = card->worked_ns / SWITCHES_PART;
        card->runs = other;
        card->worked_ns = 0;
        card->idle_ns = at_ns + (part_ns < SWITCH_NS ? part_ns : SWITCH_NS) + BETWEEN_NS;
        card->time_slice_ns = card->idle_ns + TIME_SLICE_NS;
    } else if (at_ns >= card->idle_ns && at_ns >= card->time_slice_ns) {
        card->time_slice_ns = at_ns + TIME_SLICE_NS;
    }
}

/* When it next comes to something that may matter to others, by then at most. */
static uint64_t card_until(const struct card *card, uint64_t at_ns, uint64_t to_ns)
{
    if (at_ns < card->idle_ns)
        return card->idle_ns < to_ns ? card->idle_ns : to_ns;
    to_ns = card->time_slice_ns < to_ns ? card->time_slice_ns : to_ns;
    uint64_t ready = card->runs == NULL ? 0 : ready_ns(card->runs);
    return ready > 0 && at_ns + ready < to_ns ? at_ns + ready : to_ns;
}

/* While several have work for a card each is charged its part of the clock, whoever of them has the driver's turn. */
static void note_served(unsigned number, const struct tenant *runs, uint64_t at_ns, uint64_t to_ns)
{
    uint64_t second = at_ns / 1000000000;
    unsigned count = 0;
    struct tenant *wants[TENANTS];
    for (unsigned i = 0; i < machine.tenant_count; i++)
        if (machine.tenants[i]->card == number && has_work(machine.tenants[i]))
            wants[count++] = machine.tenants[i];
    for (unsigned i = 0; i < count && count > 1 && second < SECONDS; i++)
        wants[i]->served_ns[second] += (int64_t)(wants[i] == runs ? to_ns - at_ns : 0) -
                                       (int64_t)budget_part(to_ns - at_ns, count - 1);
}

/* The same of one card on which a service runs what all have at the same time, each as if it were alone: kernels that
 * leave room for each other. */
static void card_serve(void)
{
    while (machine.card_ns < machine.now_ns) {
        uint64_t at_ns = machine.card_ns, to_ns = machine.now_ns;
        for (unsigned i = 0; i < machine.tenant_count; i++) {
            uint64_t ready = ready_ns(machine.tenants[i]);
            to_ns = ready > 0 && at_ns + ready < to_ns ? at_ns + ready : to_ns;
        }
        for (unsigned i = 0; i < machine.tenant_count; i++)
            if (has_work(machine.tenants[i]))
                note_busy(machine.tenants[i], at_ns, to_ns);
        machine.card_ns = to_ns;
    }
}

/* Let the cards work until now: each on what one context asked for, in order of its streams; in time slices where
 * several did. */
static void card_work(void)
{
    if (machine.serves) {
        card_serve();
        return;
    }
    while (machine.card_ns < machine.now_ns) {
        uint64_t at_ns = machine.card_ns, to_ns = machine.now_ns;
        unsigned cards = machine.several ? CARDS : 1;
        for (unsigned number = 0; number < cards; number++)
            card_choose(number, at_ns);
        pass_stops();
        for (unsigned number = 0; number < cards; number++)
            to_ns = card_until(&machine.cards[number], at_ns, to_ns);
        to_ns = host_until(to_ns);
        for (unsigned number = 0; number < cards; number++) {
            struct card *card = &machine.cards[number];
            bool works = at_ns >= card->idle_ns && card->runs != NULL && has_work(card->runs);
            uint32_t mw = works ? card->runs->draws_mw : 0;
            note_served(number, works ? card->runs : NULL, at_ns, to_ns);
            if (works)
                note_busy(card->runs, at_ns, to_ns);
            if (number == 0)
                draw(at_ns, to_ns, mw);
        }
        machine.card_ns = to_ns;
    }
    pass_stops();
}

/* From the first launch of whoever draws too much. */
static uint32_t card_clock(void)
{
    uint32_t clock = POWER_UNITY;
    for (unsigned i = 0; i < machine.tenant_count; i++) {
        const struct tenant *tenant = machine.tenants[i];
        if (tenant->launched > 0 && tenant->clock > 0 && tenant->clock < clock)
            clock = tenant->clock;
    }
    return clock;
}

/* What waited for this launch is done in a moment. */
static void card_let_go(struct tenant *tenant)
{
    uint64_t until_ns = tenant->done_ns + tenant->kernel_ns;
    for (struct fence *fence = machine.fence; fence < machine.fence + FENCES; fence++)
        if (fence->tenant == tenant && fence->at_ns > until_ns)
            fence->at_ns = until_ns;
    tenant->asked_ns = tenant->asked_ns < until_ns ? tenant->asked_ns : until_ns;
}

static void card_launch(struct tenant *tenant)
{
    card_work();
    if (tenant->waits)
        card_let_go(tenant);
    uint64_t kernel_ns = tenant->kernel_ns;
    if (tenant->pattern > 0)
        kernel_ns = tenant->pattern_us[tenant->launched % tenant->pattern] * US;
    if (tenant->clocked)
        kernel_ns = kernel_ns * POWER_UNITY / card_clock();
    tenant->asked_ns += tenant->waits ? ENDLESS_NS : kernel_ns;
    if (tenant->launched++ == 0)
        tenant->first_ns = machine.now_ns;
}

/* Its context is gone, and its work with it. */
static void card_forget(struct tenant *tenant)
{
    card_work();
    tenant->asked_ns = tenant->done_ns;
    tenant->side_asked_ns = tenant->side_done_ns;
    tenant->stop_count[0] = tenant->stop_count[1] = 0;
    struct held *held = held_of(tenant);
    if (held != NULL)
        *held = (struct held){0};
}

/* The system's timers are up to 50 us late but for threads that asked for better, as the governor's does. What is
 * shorter than falling asleep is waited for awake. */
static bool is_of_program(const struct task *task);

/* Whether the task that runs has the lock of a gate. No other has one: who waits has none. */
static bool holds_a_gate(void)
{
    bool holds = false;
    for (unsigned i = 0; i < machine.tenant_count && !holds; i++) {
        struct governor *governor = machine.tenants[i]->governor;
        holds = governor != NULL && pthread_mutex_trylock(&governor->gate.lock) != 0;
        if (governor != NULL && !holds)
            pthread_mutex_unlock(&governor->gate.lock);
    }
    return holds;
}

/* One of so many looks at the clock is old by the time it is used, and the first after a pause always is. */
#define OLD_ONE_OF 8u

/* With a gate's lock none is: others of this thread would wait for that. A thread that launches on several cards starts
 * the governors of other tenants. */
static uint64_t engine_now(void)
{
    uint64_t now = task_now();
    if (machine.ages_ns == 0 || is_of_program(machine.task) || holds_a_gate())
        return now;
    machine.rng = machine.rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    bool old = machine.task->rested || (machine.rng >> 40) % OLD_ONE_OF == 0;
    machine.task->rested = false;
    if (old)
        task_wait(machine.now_ns + (machine.rng >> 33) % machine.ages_ns);
    return now;
}

static void engine_pause(uint64_t ns)
{
    bool governor = !is_of_program(machine.task);
    uint64_t late_ns = governor ? machine.timer_ns : ns < 5 * US ? 0 : 55 * US;
    task_wait(machine.now_ns + (ns > machine.poll_ns ? ns : machine.poll_ns) + late_ns);
    machine.task->rested = governor;
}

/* A stream is its tenant's address, and one more for the second. */
static struct tenant *tenant_of(void *stream, unsigned *number)
{
    *number = (uintptr_t)stream & 1;
    return (struct tenant *)((uintptr_t)stream & ~(uintptr_t)1);
}

static void *engine_stream_context(void *stream)
{
    unsigned number;
    return tenant_of(stream, &number);
}

/* A context is its tenant. */
static void *engine_make(void *context)
{
    for (struct fence *fence = machine.fence; fence < machine.fence + FENCES; fence++)
        if (fence->tenant == NULL) {
            fence->tenant = context;
            return fence;
        }
    return NULL;
}

static void engine_drop(void *fence)
{
    ((struct fence *)fence)->tenant = NULL;
}

/* The task that runs calls the driver. */
static void note_call(void)
{
    struct tenant *tenant = machine.task == NULL ? NULL : machine.task->tenant;
    if (tenant != NULL)
        *(is_of_program(machine.task) ? &tenant->calls : &tenant->governor_calls) += 1;
}

static bool engine_set(void *fence, void *stream)
{
    note_call();
    struct fence *set = fence;
    struct tenant *tenant = tenant_of(stream, &set->stream);
    set->at_ns = *asked_of(tenant, set->stream);
    set->stops = tenant->stop_at[set->stream] + tenant->stop_count[set->stream];
    return true;
}

static bool engine_passed(void *fence)
{
    note_call();
    card_work();
    const struct fence *set = fence;
    bool waits = (int)(set->stops - set->tenant->stop_at[set->stream]) > 0;
    return !waits && set->at_ns <= *done_of(set->tenant, set->stream);
}

static void *engine_make_hold(void *context)
{
    for (struct held *held = machine.held; held < machine.held + TENANTS; held++)
        if (held->tenant == NULL) {
            held->tenant = context;
            return held;
        }
    return NULL;
}

static void engine_drop_hold(void *hold)
{
    *(struct held *)hold = (struct held){0};
}

static bool engine_hold(void *hold, void *stream, bool stalls)
{
    note_call();
    struct held *held = hold;
    card_work();
    unsigned number;
    struct tenant *tenant = tenant_of(stream, &number);
    if (number != 0) /* only the first stream can be held */
        return false;
    *held = (struct held){.tenant = tenant, .on = stalls, .from_ns = tenant->asked_ns, .to_ns = UINT64_MAX};
    held->launched = held->tenant->launched;
    note_held(held, tenant->done_ns, machine.now_ns);
    return true;
}

static void engine_stamp(void *hold, void *stream)
{
    note_call();
    struct held *held = hold;
    const struct tenant *tenant = stream;
    held->to_ns = tenant->asked_ns;
    held->launches = tenant->launched - held->launched;
    held->stamps++;
}

static void engine_release(void *hold)
{
    struct held *held = hold;
    card_work();
    held->on = false;
    if (held->from_ns == held->tenant->asked_ns) /* else as soon as the card works on what was held */
        note_held(held, held->tenant->done_ns, machine.now_ns);
}

/* What a turn of others takes that comes between a hold's stamps. Two of 150 holds of launches of 4 us took 1.64 ms on
 * an H200, beside an engine whose graph takes 1.25 ms (2026-11-30). */
#define MET_NS (1630 * US)

static bool meets_a_turn(const struct held *held)
{
    bool others = false;
    for (unsigned i = 0; i < machine.tenant_count; i++)
        others = others || (machine.tenants[i] != held->tenant && pending_ns(machine.tenants[i]) > 0);
    if (!others || machine.met_percent == 0)
        return false;
    machine.rng = machine.rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (machine.rng >> 33) % 100 < machine.met_percent;
}

static bool engine_held_ns(void *hold, uint64_t *ns)
{
    card_work();
    const struct held *held = hold;
    if (held->ended_ns == 0)
        return false;
    *ns = held->ended_ns - held->begun_ns + held->launches * BETWEEN_NS + held->stamps * EVENT_NS;
    *ns += meets_a_turn(held) ? MET_NS : 0;
    return true;
}

static bool engine_device_name(const char *uuid, char *name, size_t size)
{
    (void)uuid;
    snprintf(name, size, "NVIDIA H200");
    return true;
}

/* Only a card that draws anything tells its power. */
static bool engine_power(const char *uuid, struct power_reading *reading)
{
    (void)uuid;
    card_work();
    *reading = machine.power;
    reading->mean_mw = IDLE_MW;
    reading->limit_mw = LIMIT_MW;
    reading->clock_units = card_clock();
    bool draws = false;
    for (unsigned i = 0; i < machine.tenant_count; i++)
        draws = draws || machine.tenants[i]->draws_mw > 0;
    return draws;
}

static void engine_begin(void)
{
}

static const struct engine engine = {
    .now = engine_now,
    .pause = engine_pause,
    .begin = engine_begin,
    .stream_context = engine_stream_context,
    .make = engine_make,
    .drop = engine_drop,
    .forget = engine_drop,
    .set = engine_set,
    .passed = engine_passed,
    .make_hold = engine_make_hold,
    .drop_hold = engine_drop_hold,
    .hold = engine_hold,
    .stamp = engine_stamp,
    .release = engine_release,
    .held_ns = engine_held_ns,
    .device_name = engine_device_name,
    .power = engine_power,
};

/* ----------------------------------------------------------------------------------------------------- the programs */

/* Wait until no more than so much is queued. */
static void wait_for_card(const struct tenant *tenant, uint64_t queued_ns)
{
    for (card_work(); pending_ns(tenant) > queued_ns; card_work())
        task_wait(machine.now_ns + pending_ns(tenant) - queued_ns);
}

/* A thread that slept so long finds its caches cold. */
#define COLD_AFTER_NS (2000 * US)

/* A handler interrupts every other launch after the driver has made it, and the rest before. */
static void launch(struct tenant *tenant, uint64_t handler_ns)
{
    struct stream_key stream = {.stream = tenant};
    bool gated = terms_limit_core(&tenant->terms) && gate_enter(&tenant->governor->gate, &stream);
    bool made = handler_ns > 0 && tenant->launched % 4 == 0;
    if (made)
        card_launch(tenant);
    if (handler_ns > 0) {
        task_wait(machine.now_ns + handler_ns);
        launch(tenant, 0);
    }
    if (!made)
        card_launch(tenant);
    if (tenant->reads && tenant->launched % tenant->batch == 0)
        wait_for_card(tenant, 0);
    if (gated)
        gate_leave(&tenant->governor->gate, &stream);
}

static bool enter(struct tenant *tenant, struct stream_key *key, unsigned stream)
{
    *key = (struct stream_key){.stream = (char *)tenant + stream};
    return terms_limit_core(&tenant->terms) && gate_enter(&tenant->governor->gate, key);
}

static void ask(struct tenant *tenant, unsigned stream, uint64_t ns)
{
    *asked_of(tenant, stream) += ns;
    if (tenant->launched++ == 0)
        tenant->first_ns = machine.now_ns;
}

void tenant_launch_graph(struct tenant *tenant, unsigned stream, const void *graph, uint64_t ns)
{
    struct stream_key key;
    gate_makes_graph(graph);
    bool gated = enter(tenant, &key, stream);
    card_work();
    ask(tenant, stream, ns);
    if (gated) {
        gate_leave(&tenant->governor->gate, &key);
        gate_made_graph(&tenant->governor->gate);
    }
    gate_makes_graph(NULL);
}

void tenant_launch(struct tenant *tenant, unsigned stream, uint64_t ns)
{
    struct stream_key key;
    bool gated = enter(tenant, &key, stream);
    card_work();
    ask(tenant, stream, ns);
    if (gated)
        gate_leave(&tenant->governor->gate, &key);
}

void tenant_copy(struct tenant *tenant, unsigned stream, uint64_t ns)
{
    struct stream_key key = {0};
    gate_makes_small(&key);
    bool gated = enter(tenant, &key, stream);
    gate_makes_small(NULL);
    card_work();
    ask(tenant, stream, ns);
    if (gated)
        gate_leave(&tenant->governor->gate, &key);
}

static void stop(struct tenant *tenant, unsigned stream, struct stop made)
{
    unsigned at = tenant->stop_at[stream] + tenant->stop_count[stream]++;
    demand(tenant->stop_count[stream] <= STOPS, "too many stops in a stream");
    made.at_ns = *asked_of(tenant, stream);
    tenant->stops[stream][at % STOPS] = made;
}

void tenant_meet(struct tenant *tenant, unsigned stream, unsigned communicator, uint64_t ns)
{
    struct stream_key key;
    bool gated = enter(tenant, &key, stream);
    card_work();
    uint64_t number = ++tenant->met[communicator];
    stop(tenant, stream, (struct stop){.meets = true, .communicator = communicator, .until = number});
    ask(tenant, stream, ns);
    if (gated)
        gate_leave(&tenant->governor->gate, &key);
}

void tenant_meet_together(struct tenant *const *tenants, unsigned count, uint64_t ns)
{
    struct stream_key keys[CARDS];
    bool gated[CARDS];
    for (unsigned t = 0; t < count; t++)
        gated[t] = enter(tenants[t], &keys[t], 0);
    card_work();
    for (unsigned t = 0; t < count; t++) {
        stop(tenants[t], 0, (struct stop){.meets = true, .until = ++tenants[t]->met[0]});
        ask(tenants[t], 0, ns);
    }
    for (unsigned t = count; t-- > 0;)
        if (gated[t])
            gate_leave(&tenants[t]->governor->gate, &keys[t]);
}

/* As the limiter does before and after a call of the driver that makes one. */
static void stop_in_call(struct tenant *tenant, unsigned stream, struct stop made)
{
    struct stream_key key = {.stream = (char *)tenant + stream};
    struct gate_wait wait;
    struct gate *gate = &tenant->governor->gate;
    bool known = terms_limit_core(&tenant->terms) && gate_begin_wait(gate, &key, &wait);
    card_work();
    stop(tenant, stream, made);
    if (known)
        gate_end_wait(gate, wait, true);
}

void tenant_follow(struct tenant *tenant, unsigned stream)
{
    struct stop event = {.communicator = 1 - stream, .until = *asked_of(tenant, 1 - stream)};
    if (tenant->governor != NULL && atomic_load(&tenant->governor->gate.streams.wait_count) > 0) {
        stop_in_call(tenant, stream, event);
        return;
    }
    card_work();
    stop(tenant, stream, event);
}

void tenant_wait_word(struct tenant *tenant, unsigned stream, const uint64_t *word, uint64_t until)
{
    stop_in_call(tenant, stream, (struct stop){.word = word, .until = until});
}

void tenant_spin_word(struct tenant *tenant, unsigned stream, const uint64_t *word, uint64_t until, uint64_t ns)
{
    struct stream_key key;
    bool gated = enter(tenant, &key, stream);
    card_work();
    stop(tenant, stream, (struct stop){.spins = true, .word = word, .until = until});
    ask(tenant, stream, ns);
    if (gated)
        gate_leave(&tenant->governor->gate, &key);
}

void tenant_host(struct tenant *tenant, unsigned stream, uint64_t ns)
{
    stop_in_call(tenant, stream, (struct stop){.host_ns = ns});
}

void tenant_write(uint64_t *word, uint64_t value)
{
    card_work();
    *word = value;
    pass_stops();
}

void tenant_synchronise(struct tenant *tenant)
{
    for (card_work(); pending_ns(tenant) > 0; card_work())
        task_wait(machine.now_ns + 20 * US);
}

void tenant_wait(struct tenant *tenant, unsigned stream)
{
    for (card_work(); *asked_of(tenant, stream) > *done_of(tenant, stream); card_work())
        task_wait(machine.now_ns + 20 * US);
}

void tenant_sleep(uint64_t ns)
{
    task_wait(machine.now_ns + ns);
}

static void *run_body(void *tenant_)
{
    struct tenant *tenant = tenant_;
    tenant->body(tenant);
    return NULL;
}

struct thread {
    struct tenant *tenant;
    void (*body)(struct tenant *tenant);
};

static void *run_thread(void *thread_)
{
    struct thread thread = *(struct thread *)thread_;
    free(thread_);
    thread.body(thread.tenant);
    return NULL;
}

void tenant_thread(struct tenant *tenant, void (*body)(struct tenant *tenant))
{
    struct thread *thread = malloc(sizeof *thread);
    *thread = (struct thread){.tenant = tenant, .body = body};
    task_new(tenant, run_thread, thread, machine.now_ns);
}

void machine_jump(int64_t ns)
{
    machine.wall_ns += ns;
}

static void *program(void *tenant_)
{
    struct tenant *tenant = tenant_;
    uint64_t batch_ns = machine.now_ns;
    for (;;) {
        if (tenant->lies)
            tenant_page(tenant)->owed_steps = TIME_SLICE_STEPS;
        uint64_t came_ns = machine.now_ns;
        launch(tenant, tenant->handler_ns);
        uint64_t warmup_ns = machine.now_ns - came_ns > COLD_AFTER_NS ? tenant->warmup_ns : 0;
        task_wait(machine.now_ns + tenant->host_ns + warmup_ns + 1);
        if (tenant->batch > 0 && tenant->launched % tenant->batch == 0) {
            wait_for_card(tenant, 0);
            uint64_t took_ns = machine.now_ns - batch_ns;
            tenant->batches++;
            tenant->batches_ns += took_ns;
            tenant->longest_ns = took_ns > tenant->longest_ns ? took_ns : tenant->longest_ns;
            task_wait(machine.now_ns + tenant->rest_ns);
            batch_ns = machine.now_ns;
        } else {
            wait_for_card(tenant, tenant->in_flight * tenant->kernel_ns);
        }
    }
    return NULL;
}

void machine_begin(uint64_t seed)
{
    static char usage[64]; /* only its bytes' locks count */
    ino_t inode = 1;
    memset(&machine, 0, sizeof machine);
    machine.now_ns = machine.card_ns = 1000000000;
    machine.timer_ns = TIMER_NS;
    machine.ages_ns = AGES_NS;
#ifdef __SANITIZE_ADDRESS__
    machine_poll(10 * US); /* what is asked there is of memory, and a switch takes five times as long */
#endif
    machine.rng = seed;
    for (unsigned card = 0; card < CARDS; card++) {
        struct hetero_board *board = &machine.board[card];
        board->magic = HETERO_BOARD_MAGIC;
        board->version = HETERO_BOARD_VERSION;
        machine.boards[card] = (struct file){.inode = inode++, .bytes = board, .size = sizeof *board};
    }
    for (unsigned g = 0; g < TENANTS; g++) {
        for (unsigned card = 0; card < CARDS; card++) {
            machine.pages[g][card].said = (struct hetero_page){.magic = HETERO_PAGE_MAGIC,
                                                               .version = HETERO_BOARD_VERSION};
            machine.page_files[g][card] =
                (struct file){.inode = inode++, .bytes = &machine.pages[g][card], .size = HETERO_PAGE_BYTES};
        }
        machine.usages[g] = (struct file){.inode = inode++, .bytes = usage, .size = sizeof usage};
    }
}

static unsigned grant_of(const struct tenant *tenant)
{
    unsigned grant = 0;
    const void *identity = tenant->region != NULL ? (const void *)tenant->region : tenant->account;
    while (grant < machine.grant_count && machine.grants[grant] != identity)
        grant++;
    demand(grant < TENANTS, "too many grants");
    if (grant == machine.grant_count)
        machine.grants[machine.grant_count++] = identity;
    return grant;
}

struct hetero_page *tenant_page(const struct tenant *tenant)
{
    return &machine.pages[grant_of(tenant)][tenant->card].said;
}

void tenant_lock_page(const struct tenant *tenant)
{
    char path[32];
    snprintf(path, sizeof path, ROOT "%u/page.%u", grant_of(tenant), tenant->card);
    demand(set_lock(virtual_open(path, O_RDWR), 0, F_RDLCK), "its page is locked for writing");
}

/* What root writes when a grant is made. */
static void write_row(const struct tenant *tenant)
{
    unsigned grant = grant_of(tenant);
    struct hetero_board *board = &machine.board[tenant->card];
    struct hetero_board_row *row = &board->rows[grant];
    board->generation++;
    for (unsigned g = 0; g <= grant; g++) /* others of the card may have none there */
        snprintf(board->rows[g].id, sizeof board->rows[g].id, "%u", g);
    row->gang_core = tenant->row.gang_core;
    row->gang_flags = tenant->row.gang_flags;
    row->begin_ns = tenant->row.begin_ns;
    row->length_ns = tenant->row.length_ns;
    row->period_ns = tenant->row.period_ns;
    row->inode = machine.page_files[grant][tenant->card].inode;
    row->core = tenant->terms.core;
    row->policy = tenant->terms.policy;
    row->priority = tenant->terms.priority;
    board->row_count = grant + 1 > board->row_count ? grant + 1 : board->row_count;
    board->generation++;
}

void tenant_resize(const struct tenant *tenant)
{
    write_row(tenant);
}

void tenant_start(struct tenant *tenant)
{
    static char directories[TENANTS][32]; /* they are the governors' as long as these are */
    char *directory = directories[grant_of(tenant)];
    write_row(tenant);
    snprintf(directory, sizeof directories[0], ROOT "%u", grant_of(tenant));
    if (tenant->region != NULL)
        tenant->account = &tenant->region->devices[tenant->card];
    tenant->governor = governor_new(&engine, &tenant->terms, tenant->account, directory, tenant->card);
    if (tenant->governor != NULL && tenant->region != NULL)
        governor_share(tenant->governor, &tenant->region->gang, tenant->region->devices, tenant->card,
                       tenant->several > 0 ? tenant->several : 2);
    machine.several = machine.several || tenant->card > 0;
    demand(tenant->governor != NULL && tenant->governor->time_slice.pages.own_page != NULL, "no page");
    tenant->launched = tenant->asked_ns = tenant->done_ns = 0;
    tenant->side_asked_ns = tenant->side_done_ns = tenant->steps = tenant->spun_ns = 0;
    memset(tenant->stop_at, 0, sizeof tenant->stop_at);
    memset(tenant->stop_count, 0, sizeof tenant->stop_count);
    memset(tenant->met, 0, sizeof tenant->met);
    memset(tenant->arrived, 0, sizeof tenant->arrived);
    tenant->batches = tenant->batches_ns = tenant->longest_ns = tenant->time_slices = 0;
    tenant->beside = 0;
    tenant->calls = tenant->governor_calls = 0;
    memset(tenant->busy_ns, 0, sizeof tenant->busy_ns);
    unsigned known = 0;
    while (known < machine.tenant_count && machine.tenants[known] != tenant)
        known++;
    demand(known < TENANTS, "too many tenants");
    machine.tenants[known] = tenant;
    machine.tenant_count += known == machine.tenant_count;
    task_new(tenant, tenant->body != NULL ? run_body : program, tenant,
             tenant->from_ns > machine.now_ns ? tenant->from_ns : machine.now_ns);
}

static void stop_tasks(struct tenant *tenant, bool dead, bool stopped)
{
    for (struct task *task = tasks; task < tasks + machine.tasks; task++)
        if (task->tenant == tenant) {
            task->dead = task->dead || dead;
            task->stopped = stopped;
        }
}

/* A governor lives as long as its process. */
static void forget_governor(struct tenant *tenant)
{
    if (tenant->governor == NULL)
        return;
    if (tenant->governor->time_slice.owing.claimed_byte != 0)
        virtual_munmap(tenant->governor->time_slice.owing.keeper_mapping, 1);
    governor_after_fork(tenant->governor); /* lets go of its descriptor */
    for (unsigned chunk = 0; chunk < TRACKED_STREAM_CHUNKS; chunk++)
        free(tenant->governor->gate.streams.chunks[chunk]);
    free(tenant->governor);
    tenant->governor = NULL;
    for (struct fence *fence = machine.fence; fence < machine.fence + FENCES; fence++)
        if (fence->tenant == tenant)
            fence->tenant = NULL;
}

void tenant_kill(struct tenant *tenant)
{
    card_forget(tenant);
    stop_tasks(tenant, true, false);
    forget_governor(tenant);
}

void tenant_stop(struct tenant *tenant)
{
    stop_tasks(tenant, false, true);
}

static bool is_of_program(const struct task *task)
{
    return task->run == program || task->run == run_body || task->run == run_thread;
}

void tenant_stop_launchers(struct tenant *tenant)
{
    for (struct task *task = tasks; task < tasks + machine.tasks; task++)
        if (task->tenant == tenant && is_of_program(task))
            task->stopped = true;
}

void tenant_continue(struct tenant *tenant)
{
    stop_tasks(tenant, false, false);
}

bool tenant_runs(const struct tenant *tenant)
{
    return tenant->governor != NULL && gate_opens(atomic_load(&tenant->governor->gate.state));
}

bool tenant_waits(const struct tenant *tenant)
{
    const struct time_slice *time_slice = &tenant->governor->time_slice;
    return time_slice->pages.is_asking && !time_slice->is_ours && !time_slice->is_late;
}

bool tenant_is_idle(const struct tenant *tenant)
{
    card_work();
    return pending_ns(tenant) == 0;
}

bool tenant_is_kept(const struct tenant *tenant)
{
    struct governor *governor = tenant->governor;
    uint64_t now = machine.now_ns + (uint64_t)tenant->skew_ns;
    return atomic_load(&governor->gate.queue.waiting_count) > 0 && pending_ns(tenant) == 0 &&
           account_balance(&governor->account, now) >= 0;
}

double tenant_got(const struct tenant *tenant, unsigned from_s, unsigned to_s)
{
    uint64_t busy_ns = 0;
    for (unsigned s = from_s; s < to_s; s++)
        busy_ns += tenant->busy_ns[s];
    return (double)busy_ns / 1e7 / (to_s - from_s);
}

void machine_end(void)
{
    for (unsigned i = 0; i < machine.tenant_count; i++) /* one whose program has ended has no task */
        forget_governor(machine.tenants[i]);
    machine.tasks = 0;
}
