/* Random calls from several processes of two grants, each compared with the reference model (books.h):
 *
 *     model LIMITER GRANT GRANT random SEED CALLS KILLS
 *     model LIMITER GRANT GRANT script < calls
 *
 * After each call these are checked: the answer; the charges of each process in the usage region; the memory that the
 * card reports for each process and in all. Charges and held memory are equal, but for what docs/charges.md says of
 * each kind. When all is freed and all processes have ended, both are 0.
 */
#include "books.h"
#include "call.h"

#include "../../../limiters/core/region.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define FILES         16u
#define TRACE         65536u
#define OUT_OF_MEMORY 2

/* What is done to processes, besides the calls that they make. */
#define DEEDS(X) X(START) X(END) X(KILL) X(KILL_RUNNING) X(KILL_STARTING) X(CLOSE_FILE)
enum { FIRST_DEED = CALL_KINDS - 1, DEEDS(ENUM) DEED_KINDS };

#define NAME(name) #name,
static const char *const names[] = {CALLS(NAME) DEEDS(NAME)};

struct grant {
    const char *directory;
    const struct hetero_grant *content;
    struct hetero_region *region;
    char environment_setting[4096]; /* HETERO_GRANT */
};

static const char *own_path, *limiter_path;
static struct grant grants[GRANTS];
static struct books books;
static int sockets[PROCESSES];
static struct {
    int fd;
    unsigned share_index, grant_index;
} files[FILES];                /* fd 0: unused */
static unsigned waits_allowed; /* how many refusals that take a second are still allowed */

/* ------------------------------------------------------------------------------------------------------------ a trace
 */

static char trace[TRACE][160];
static unsigned trace_count;
static char failure[512];

static void __attribute__((format(printf, 1, 2))) note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(trace[trace_count++ % TRACE], sizeof trace[0], format, arguments);
    va_end(arguments);
}

/* Only the first failure is reported, since it may cause those after it. */
static void __attribute__((format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (failure[0] == '\0')
        vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
}

static double mib(uint64_t bytes)
{
    return (double)(int64_t)bytes / (double)MIB;
}

static void print_trace(unsigned max_lines)
{
    unsigned first_line = trace_count > max_lines ? trace_count - max_lines : 0;
    for (unsigned i = first_line; i < trace_count; i++)
        printf("  %s\n", trace[i % TRACE]);
    printf("  %s\n", failure);
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------------- what the card says, and
 * what the regions say */

#define NVML_ROWS 64u
struct nvml_row {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned instances[2];
};
static int (*nvml_memory)(void *, uint64_t[3]), (*nvml_rows)(void *, unsigned *, struct nvml_row *);
static void *cards[DEVICES];

struct snapshot {
    uint64_t charged_bytes[PROCESSES][DEVICES], figure_bytes[PROCESSES][DEVICES];
    uint64_t left_bytes[GRANTS][DEVICES]; /* of processes that ended */
    uint64_t used_bytes[DEVICES], limit_bytes[GRANTS][DEVICES];
    bool has_slot[PROCESSES]; /* whether it has a slot: a process that was never charged has none, and sweeps none */
};

static void *required(void *pointer, const char *name)
{
    if (pointer != NULL && pointer != MAP_FAILED)
        return pointer;
    fprintf(stderr, "%s: %s\n", name, strerror(errno));
    exit(2);
}

static void open_cards(void)
{
    void *nvml = required(dlopen("libnvidia-ml.so.1", RTLD_NOW), "libnvidia-ml.so.1");
    int (*init)(void), (*by_uuid)(const char *, void **);
    *(void **)&init = required(dlsym(nvml, "nvmlInit_v2"), "nvmlInit_v2");
    *(void **)&by_uuid = required(dlsym(nvml, "nvmlDeviceGetHandleByUUID"), "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml_memory = required(dlsym(nvml, "nvmlDeviceGetMemoryInfo"), "nvmlDeviceGetMemoryInfo");
    *(void **)&nvml_rows = required(dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3"), "processes");
    init();
    for (uint32_t device = 0; device < grants[0].content->device_count; device++)
        by_uuid(grants[0].content->devices[device].uuid, &cards[device]);
}

static void snapshot_card(struct snapshot *snapshot, uint32_t device)
{
    uint64_t memory_bytes[3] = {0}; /* total, free, used */
    struct nvml_row rows[NVML_ROWS];
    unsigned row_count = NVML_ROWS;
    if (nvml_memory(cards[device], memory_bytes) != 0 || nvml_rows(cards[device], &row_count, rows) != 0)
        fail("NVML does not answer");
    snapshot->used_bytes[device] = memory_bytes[2];
    for (unsigned i = 0; i < row_count && i < NVML_ROWS; i++)
        for (unsigned process_index = 0; process_index < PROCESSES; process_index++)
            if (books.processes[process_index].is_alive && books.processes[process_index].pid == (int)rows[i].pid)
                snapshot->figure_bytes[process_index][device] = rows[i].memory_bytes;
}

/* A slot belongs to a live process, or has memory that others have open of an ended one. The next sweep clears all
 * other slots. */
static void snapshot_slot(struct snapshot *snapshot, uint32_t grant_index, const struct hetero_region_slot *slot)
{
    for (uint32_t device = 0; device < DEVICES && slot->pid != 0; device++) {
        uint64_t shared_bytes = slot->reports[HETERO_REPORT_SHARED][device],
                 *counter = &snapshot->left_bytes[grant_index][device], bytes = slot->used_bytes[device];
        for (unsigned process_index = 0; process_index < PROCESSES; process_index++)
            if (books.processes[process_index].is_alive && books.processes[process_index].pid == (int)slot->pid)
                counter = &snapshot->charged_bytes[process_index][device], snapshot->has_slot[process_index] = true;
        if (counter == &snapshot->left_bytes[grant_index][device] && slot->pid != HETERO_REGION_ORPHANED)
            bytes = !books_opened(&books, grant_index) ? 0 : shared_bytes < bytes ? shared_bytes : bytes;
        *counter += bytes;
    }
}

static struct snapshot take_snapshot(void)
{
    struct snapshot snapshot = {0};
    for (uint32_t device = 0; device < grants[0].content->device_count; device++)
        snapshot_card(&snapshot, device);
    for (uint32_t grant_index = 0; grant_index < GRANTS; grant_index++) {
        for (uint32_t s = 0; s < grants[grant_index].region->reached_slot_count; s++)
            snapshot_slot(&snapshot, grant_index, &grants[grant_index].region->slots[s]);
        for (uint32_t device = 0; device < grants[grant_index].content->device_count; device++)
            snapshot.limit_bytes[grant_index][device] = grants[grant_index].content->devices[device].memory_bytes;
    }
    return snapshot;
}

static uint64_t used_by(const struct snapshot *snapshot, uint32_t grant_index, uint32_t device)
{
    uint64_t bytes = snapshot->left_bytes[grant_index][device];
    for (uint32_t process_index = 0; process_index < PROCESSES; process_index++)
        bytes += books.processes[process_index].grant == grant_index ? snapshot->charged_bytes[process_index][device]
                                                                     : 0;
    return bytes;
}

static bool measures(const struct call *call)
{
    uint32_t kind = call->kind;
    return kind == STREAM || kind == MODULE || kind == MODULE_UNLOAD || kind == LIBRARY || kind == LIBRARY_UNLOAD ||
           kind == ARRAY || kind == SPARSE || kind == RELEASE || kind == RESET || kind == DESTROY ||
           kind == GREEN_DESTROY || kind == GRAPH;
}

/* -------------------------------------------------------------------------------------------------------------- laws
 */

/* What the driver's figure has beyond charges and contexts is charged after a call that measures. Loaded code is
 * not, up to eight times its image. A refused allocation was there when it was measured. While something is charged
 * that the card does not hold yet, a decrease of the rest cannot be measured. */
static void check_measured(const struct snapshot *snapshot, uint32_t process_index, uint32_t device, struct range range,
                           bool is_refused)
{
    struct process *process = &books.processes[process_index];
    uint64_t charged_bytes = snapshot->charged_bytes[process_index][device],
             figure_bytes = snapshot->figure_bytes[process_index][device];
    uint64_t known_bytes = range.min_bytes + books_uncharged(&books, process_index, device) -
                           books_stuck(&books, process_index, device) - books_managed(&books, process_index, device);
    uint64_t max_bytes = figure_bytes > known_bytes ? figure_bytes - known_bytes : 0,
             slack_bytes = process->code_bytes + (is_refused ? BLOCK_BYTES : 0),
             min_bytes = max_bytes > slack_bytes ? max_bytes - slack_bytes : 0;
    uint64_t hidden_bytes = books_unseen(&books, process_index, device) - books_stuck(&books, process_index, device) -
                            books_managed(&books, process_index, device);
    for (unsigned c = 0; c < CONTEXTS; c++) /* whether heaps and queues exist depends on the kernels that ran */
        hidden_bytes += process->contexts[c].attach_count > 0 && process->contexts[c].device == device
                            ? process->contexts[c].limit_bytes
                            : 0;
    uint64_t max_measured_bytes = figure_bytes + hidden_bytes > known_bytes ? figure_bytes + hidden_bytes - known_bytes
                                                                            : 0;
    process->measured_bytes[device] = charged_bytes - range.min_bytes < max_measured_bytes
                                          ? charged_bytes - range.min_bytes
                                          : max_measured_bytes;
    if (range.min_bytes != range.max_bytes)
        return;
    if (charged_bytes < range.min_bytes + min_bytes || charged_bytes > range.min_bytes + max_measured_bytes)
        fail("process %u, device %u: charged %.3f MiB; %.3f by its calls, and %.3f to %.3f by the driver's figure",
             process_index, device, mib(charged_bytes), mib(range.min_bytes), mib(min_bytes), mib(max_measured_bytes));
}

static void check_charges(const struct snapshot *snapshot, uint32_t process_index, uint32_t device, bool is_measured,
                          bool may_be_measured, bool is_refused)
{
    struct process *process = &books.processes[process_index];
    struct range range = books_charged(&books, process_index, device);
    uint64_t charged_bytes = snapshot->charged_bytes[process_index][device];
    if (!books_has_context(&books, process_index, device))
        process->measured_bytes[device] = 0;
    bool fits = charged_bytes >= range.min_bytes + process->measured_bytes[device] &&
                charged_bytes <= range.max_bytes + process->measured_bytes[device];
    may_be_measured = may_be_measured || process->is_unsure[device];
    process->is_unsure[device] = may_be_measured && range.min_bytes != range.max_bytes;
    if (books_has_context(&books, process_index, device) && (is_measured || (may_be_measured && !fits)))
        check_measured(snapshot, process_index, device, range, is_refused);
    else if (!fits)
        fail("process %u, device %u: charged %.3f MiB, not %.3f to %.3f", process_index, device, mib(charged_bytes),
             mib(range.min_bytes + process->measured_bytes[device]),
             mib(range.max_bytes + process->measured_bytes[device]));
}

/* Memory that is held is charged, and charged memory is held. */
static void check_figure(const struct snapshot *snapshot, uint32_t process_index, uint32_t device)
{
    uint64_t charged_bytes = snapshot->charged_bytes[process_index][device],
             figure_bytes = snapshot->figure_bytes[process_index][device];
    uint64_t uncharged_bytes =
        books_uncharged(&books, process_index, device) + books_streams(&books, process_index, device) +
        books_taken_over(&books, process_index, device) + books.processes[process_index].code_bytes;
    uint64_t unseen_bytes = books_unseen(&books, process_index, device) + books_idle(&books, process_index, device) +
                            books.processes[process_index].measured_bytes[device]; /* until the next measurement */
    if (figure_bytes > charged_bytes + uncharged_bytes)
        fail("process %u, device %u: holds %.3f MiB, charged %.3f and %.3f for contexts", process_index, device,
             mib(figure_bytes), mib(charged_bytes), mib(uncharged_bytes));
    if (charged_bytes > figure_bytes + unseen_bytes)
        fail("process %u, device %u: charged %.3f MiB, holds %.3f, and %.3f may come", process_index, device,
             mib(charged_bytes), mib(figure_bytes), mib(unseen_bytes));
}

static void check_left(const struct snapshot *snapshot, uint32_t grant_index, uint32_t device, bool is_looked)
{
    uint64_t left_bytes = snapshot->left_bytes[grant_index][device],
             expected_bytes = books.left_bytes[grant_index][device];
    bool is_opened = books_opened(&books, grant_index);
    if (left_bytes > books.max_left_bytes[grant_index][device] || (is_opened && left_bytes < expected_bytes) ||
        (!is_opened && is_looked && left_bytes != 0))
        fail("grant %u, device %u: %.3f MiB charged for what ended processes shared, not %.3f", grant_index, device,
             mib(left_bytes), mib(is_opened || !is_looked ? expected_bytes : 0));
    books.left_bytes[grant_index][device] = is_opened ? left_bytes : 0; /* a sweep before the next open releases it */
    if (is_looked)
        books.max_left_bytes[grant_index][device] = left_bytes;
}

static void check_card(const struct snapshot *snapshot, uint32_t device)
{
    uint64_t allowed_bytes = books_orphans(&books, device), left_bytes = 0;
    for (uint32_t grant_index = 0; grant_index < GRANTS; grant_index++)
        left_bytes += snapshot->left_bytes[grant_index][device];
    allowed_bytes = allowed_bytes > left_bytes ? allowed_bytes : left_bytes;
    for (uint32_t process_index = 0; process_index < PROCESSES; process_index++)
        allowed_bytes += snapshot->charged_bytes[process_index][device] +
                         books_uncharged(&books, process_index, device) + books_streams(&books, process_index, device) +
                         books.processes[process_index].code_bytes;
    if (snapshot->used_bytes[device] > allowed_bytes)
        fail("device %u: holds %.3f MiB, charged and known %.3f", device, mib(snapshot->used_bytes[device]),
             mib(allowed_bytes));
}

static bool may_measure(const struct call *call)
{
    return call->kind == IMPORT || call->kind == OPEN || call->kind == CLOSE || call->kind == LIBRARY ||
           call->kind == POOL_EXPORT || call->kind == POOL_IMPORT || call->kind == POOL_OPEN ||
           call->kind == LIBRARY_USE || call->kind == LIBRARY_UNLOAD || call->kind == CREATE ||
           call->kind == GRAPH_DESTROY || call->kind == LAUNCH || /* on the first launch */
           call->kind == RETAIN; /* if it is refused for its libraries, the context ends again */
}

static void check(const struct snapshot *snapshot, uint32_t caller_index, const struct call *call, int code)
{
    for (uint32_t process_index = 0; process_index < PROCESSES; process_index++) {
        const struct process *process = &books.processes[process_index];
        bool is_caller = process_index == caller_index;
        for (uint32_t device = 0; process->is_alive && device < grants[process->grant].content->device_count;
             device++) {
            bool is_kept = call->kind == RELEASE && process->contexts[call->device].attach_count > 0;
            bool is_measured = is_caller && device == call->device && measures(call) && !is_kept;
            check_charges(snapshot, process_index, device, is_measured && code == 0,
                          is_measured || (is_caller && may_measure(call)), code != 0);
            check_figure(snapshot, process_index, device);
        }
    }
    for (uint32_t device = 0; device < grants[0].content->device_count; device++) {
        for (uint32_t grant_index = 0; grant_index < GRANTS; grant_index++)
            check_left(snapshot, grant_index, device,
                       call->kind == LOOK && call->device == device &&
                           books.processes[caller_index].grant == grant_index && snapshot->has_slot[caller_index]);
        check_card(snapshot, device);
    }
}

static bool any_blocked(const struct process *process)
{
    for (uint32_t c = 0; c < CELLS; c++)
        if (process->things[c].kind == A_STREAM && process->things[c].is_blocked)
            return true;
    return false;
}

/* Memory that this process may be charged for by its figure at any call, and that another process is charged for as
 * well: what it has open after its maker freed it. */
static uint64_t charged_twice(uint32_t process_index, uint32_t device)
{
    return books_has_context(&books, process_index, device) ? books_taken_over(&books, process_index, device) : 0;
}

/* Whether a new context is charged. It is compared with the driver's figure, which the first of a process brings. */
static bool charges_context(const struct process *process, const struct call *call)
{
    return books.context_charges[process->grant] > 0 &&
           (call->kind == CREATE || (call->kind == RETAIN && process->contexts[call->device].attach_count == 0));
}

/* A refusal is correct if the grant has no room, after the process has released freed memory that it keeps. */
static void check_refusal(const struct snapshot *before, uint32_t process_index, const struct call *call)
{
    struct process *process = &books.processes[process_index];
    struct range range = books_charged(&books, process_index, call->device);
    uint64_t used_bytes = used_by(before, process->grant, call->device),
             wanted_bytes = books_wanted(&books, process_index, call);
    uint64_t limit_bytes = before->limit_bytes[process->grant][call->device];
    used_bytes -= before->charged_bytes[process_index][call->device] - range.min_bytes -
                  process->measured_bytes[call->device];
    if (!any_blocked(process))
        used_bytes -= process->pool_bytes[call->device] - process->pool_used_bytes[call->device];
    uint64_t twice_bytes = charges_context(process, call) ? books_taken_over(&books, process_index, call->device)
                                                          : charged_twice(process_index, call->device);
    if (used_bytes + wanted_bytes + twice_bytes <= limit_bytes)
        fail("process %u, device %u: %.3f MiB refused with %.3f of %.3f in use", process_index, call->device,
             mib(wanted_bytes), mib(used_bytes), mib(limit_bytes));
}

/* A library counts on each device with a context of the process, so it may not fit on another device. */
static bool elsewhere(const struct snapshot *before, uint32_t process_index, const struct call *call)
{
    uint32_t grant_index = books.processes[process_index].grant;
    for (uint32_t device = 0; call->kind == LIBRARY && device < grants[grant_index].content->device_count; device++)
        if (device != call->device &&
            used_by(before, grant_index, device) + books_library(&books, process_index, device, call->bytes) >
                before->limit_bytes[grant_index][device])
            return true;
    return false;
}

static void check_answer(const struct snapshot *before, const struct snapshot *after, uint32_t process_index,
                         const struct call *call, int code)
{
    uint32_t grant_index = books.processes[process_index].grant, device = call->device;
    uint64_t wanted_bytes = books_wanted(&books, process_index, call);
    bool may_fail = call->kind == OPEN || (call->kind == LAUNCH && code == 1) ||
                    elsewhere(before, process_index, call) ||
                    (call->kind == LIBRARY_USE && code == OUT_OF_MEMORY); /* by the figure, which is read every 10 ms */
    /* By the driver's figure, which may be larger now than before. */
    bool is_over = measures(call) &&
                   used_by(after, grant_index, device) + wanted_bytes > before->limit_bytes[grant_index][device];
    bool is_charged = wanted_bytes > 0 || charges_context(&books.processes[process_index], call);
    if (code == OUT_OF_MEMORY && is_charged && !is_over && !may_fail)
        check_refusal(before, process_index, call);
    else if (code != 0 && !may_fail && !is_over)
        fail("process %u: %s answers %d", process_index, names[call->kind], code);
    else if (code == 0 && wanted_bytes > 0 &&
             used_by(after, grant_index, device) >
                 before->limit_bytes[grant_index][device] + charged_twice(process_index, device) &&
             used_by(after, grant_index, device) > used_by(before, grant_index, device))
        fail("process %u, device %u: granted, and %.3f of %.3f MiB are in use", process_index, device,
             mib(used_by(after, grant_index, device)), mib(before->limit_bytes[grant_index][device]));
}

/* --------------------------------------------------------------------------------------------------------- processes
 */

static void *map_file(const char *directory, const char *name, size_t bytes, int protection)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    void *mapping = fd < 0 ? NULL : mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return required(mapping, path);
}

static int spawn(uint32_t process_index, uint32_t grant_index)
{
    static char preload[4096];
    const char *environment[512];
    unsigned variable_count = 0;
    int socket_pair[2], pid = -1;
    char socket_number[16];
    for (char **variable = environ; *variable != NULL && variable_count < 509; variable++)
        environment[variable_count++] = *variable;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", limiter_path);
    environment[variable_count++] = preload;
    environment[variable_count++] = grants[grant_index].environment_setting;
    environment[variable_count] = NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socket_pair) != 0)
        return -1;
    fcntl(socket_pair[1], F_SETFD, 0);
    snprintf(socket_number, sizeof socket_number, "%d", socket_pair[1]);
    char *arguments[] = {(char *)own_path, "work", socket_number, NULL};
    posix_spawn(&pid, own_path, NULL, NULL, arguments, (char **)environment);
    close(socket_pair[1]);
    sockets[process_index] = socket_pair[0];
    return pid;
}

/* Makes a call in a process. Returns the file descriptor of the answer, or -1. */
static int ask(uint32_t process_index, const struct call *call, int fd, struct answer *answer)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec vector = {(void *)call, sizeof *call};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (fd >= 0) {
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.bytes;
    }
    if (call != NULL && sendmsg(sockets[process_index], &message, MSG_NOSIGNAL) != sizeof *call)
        fail("process %u is gone", process_index);
    if (call != NULL && call->kind == RUN)
        return -1;
    vector = (struct iovec){answer, sizeof *answer};
    message = (struct msghdr){
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    if (recvmsg(sockets[process_index], &message, MSG_CMSG_CLOEXEC) != sizeof *answer) {
        fail("process %u ended", process_index);
        answer->code = -1;
    }
    if (message.msg_controllen > 0)
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    return message.msg_controllen > 0 ? fd : -1;
}

static void start(uint32_t process_index, uint32_t grant_index)
{
    struct answer answer = {0};
    books.processes[process_index].grant = grant_index;
    books.processes[process_index].pid = spawn(process_index, grant_index);
    ask(process_index, NULL, -1, &answer);
    books.processes[process_index].is_alive = true;
}

static bool has_slot(const struct grant *grant, uint32_t pid)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/usage", grant->directory);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool is_locked = false;
    for (uint32_t s = 0; s < grant->region->reached_slot_count; s++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = s, .l_len = 1};
        is_locked = is_locked || (grant->region->slots[s].pid == pid && fcntl(fd, F_OFD_GETLK, &lock) == 0 &&
                                  lock.l_type != F_UNLCK);
    }
    close(fd);
    return is_locked;
}

static bool is_on_a_card(uint32_t pid)
{
    struct nvml_row rows[NVML_ROWS];
    bool is_found = false;
    for (uint32_t device = 0; device < grants[0].content->device_count; device++) {
        unsigned row_count = NVML_ROWS;
        nvml_rows(cards[device], &row_count, rows);
        for (unsigned i = 0; i < row_count && i < NVML_ROWS; i++)
            is_found = is_found || rows[i].pid == pid;
    }
    return is_found;
}

/* The lock that shows a live process is held by a mapping, which stays while /proc/PID/smaps is read (ps): up to 47
 * ms after waitpid, with two processes that read it all the time. */
static void await_end(const struct grant *grant, uint32_t pid)
{
    for (int tries = 0; tries < 2000 && (has_slot(grant, pid) || is_on_a_card(pid)); tries++)
        usleep(1000);
}

static void reap(uint32_t process_index, int signal)
{
    int status;
    if (signal != 0)
        kill(books.processes[process_index].pid, signal);
    close(sockets[process_index]);
    waitpid(books.processes[process_index].pid, &status, 0);
    await_end(&grants[books.processes[process_index].grant], (uint32_t)books.processes[process_index].pid);
    if (signal == 0 && status != 0)
        fail("process %u ended with status %#x", process_index, (unsigned)status);
    if (books.processes[process_index].is_alive)
        books_end(&books, process_index);
}

/* --------------------------------------------------------------------------------------- a call out of three numbers
 */

struct raw { /* subject: chooses the object; amount: chooses the size */
    uint32_t kind, process_index, subject, amount;
};

static const uint64_t sizes[] = {2 * MIB,      1,        512,           MIB - 512, MIB,     2 * MIB + 1, 5 * MIB,
                                 32 * MIB + 1, 16 * MIB, 64 * 1024 + 4, 24 * MIB,  64 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

/* An exported pool with memory in use, which outlives its handle. */
static bool is_in_use(const struct thing *pool)
{
    return pool->share != NULL && pool->share->used_bytes > 0;
}

static bool suits_call(const struct thing *thing, uint32_t kind)
{
    switch (kind) {
    case FREE:
        return thing->kind == POINTER || thing->kind == SUBALLOCATION || thing->kind == MANAGED_POINTER ||
               thing->kind == POOL_POINTER || thing->kind == IMPORTED_POOL_POINTER ||
               (thing->kind == AN_EXEC && thing->is_live);
    case FREE_ASYNC:
        return (thing->kind == POINTER && thing->block_number == 0) || thing->kind == POOL_POINTER ||
               (thing->kind == AN_EXEC && thing->is_live);
    case POOL_DESTROY: return thing->kind == IMPORTED_POOL || (thing->kind == A_POOL && !is_in_use(thing));
    case POOL_TRIM: return thing->kind == A_POOL;
    case POOL_EXPORT: return thing->kind == A_POOL && thing->is_exportable;
    case POOL_SHARE: return thing->kind == A_POOL && thing->share != NULL;
    case POOL_OPEN:
        return thing->kind == IMPORTED_POOL && thing->share->maker_references > 0 && thing->share->handle[0] != 0;
    case STREAM_DESTROY:
    case BLOCK_STREAM: return thing->kind == A_STREAM && !thing->is_blocked;
    case OPEN_STREAM: return thing->kind == A_STREAM && thing->is_blocked;
    case LAUNCH: return thing->kind == AN_EXEC && thing->owner_context != NONE;
    case GRAPH_DESTROY: return thing->kind == AN_EXEC;
    case HANDLE_RETAIN:
    case UNMAP: return thing->kind == A_MAPPING;
    case HANDLE_RELEASE:
    case MAP: return thing->kind == A_HANDLE;
    case EXPORT: return thing->kind == A_HANDLE && thing->is_exportable;
    case TILE: return thing->kind == A_HANDLE && !thing->is_imported && !thing->is_exportable;
    case SHARE: return (thing->kind == POINTER && thing->block_number == 0) || thing->kind == SUBALLOCATION;
    case CLOSE: return thing->kind == IPC_POINTER;
    case ARRAY_DESTROY: return thing->kind == AN_ARRAY || thing->kind == A_SPARSE_ARRAY;
    case MODULE_UNLOAD: return thing->kind == A_MODULE;
    case LIBRARY_USE:
    case LIBRARY_UNLOAD: return thing->kind == A_LIBRARY;
    case GREEN_DESTROY: return thing->kind == A_GREEN_CONTEXT;
    default: return false;
    }
}

/* One of the process's cells that suit this kind of call, by the number; NONE: there is none. */
static uint32_t cell_for(const struct process *process, uint32_t kind, uint32_t subject)
{
    uint32_t cells[CELLS], count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        if (suits_call(&process->things[c], kind))
            cells[count++] = c;
    return count == 0 ? NONE : cells[subject % count];
}

static uint32_t free_cell(const struct process *process)
{
    uint32_t cell = 0;
    while (cell < CELLS && process->things[cell].kind != NOTHING)
        cell++;
    return cell < CELLS ? cell : NONE;
}

static uint32_t context_for(const struct process *process, uint32_t first_context, uint32_t subject)
{
    uint32_t contexts[CONTEXTS], count = 0;
    for (uint32_t c = first_context; c < CONTEXTS; c++)
        if (process->contexts[c].attach_count > 0)
            contexts[count++] = c;
    return count == 0 ? NONE : contexts[subject % count];
}

/* A context on this device; NONE: there is none. */
static uint32_t context_on(const struct process *process, uint32_t device)
{
    for (uint32_t c = 0; c < CONTEXTS; c++)
        if (process->contexts[c].attach_count > 0 && process->contexts[c].device == device)
            return c;
    return NONE;
}

static unsigned greens(const struct process *process, uint32_t device)
{
    unsigned count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        count += process->things[c].kind == A_GREEN_CONTEXT && process->things[c].device == device;
    return count;
}

static bool choose_context(const struct raw *raw, const struct process *process, struct call *call)
{
    uint32_t devices = grants[process->grant].content->device_count;
    call->device = raw->subject % devices;
    switch (raw->kind) {
    case RETAIN: return process->contexts[call->device].attach_count < 2;
    case RELEASE:
    case RESET:
        call->context = call->device;
        return process->contexts[call->device].attach_count > greens(process, call->device) &&
               !books_may_move(&books, raw->process_index, call->context);
    case CREATE:
        call->other_cell = process->contexts[2].attach_count == 0 ? 2 : 3;
        return process->contexts[call->other_cell].attach_count == 0;
    default:
        call->context = context_for(process, 2, raw->subject);
        call->device = call->context == NONE ? 0 : process->contexts[call->context].device;
        return call->context != NONE && !books_may_move(&books, raw->process_index, call->context);
    }
}

/* The stream of an ordered call: one of the program's on this device; NONE: the default stream. */
static uint32_t stream_for(const struct process *process, uint32_t device, uint32_t amount)
{
    uint32_t cells[CELLS], count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        if (process->things[c].kind == A_STREAM && process->things[c].device == device)
            cells[count++] = c;
    return count == 0 || amount % 3 == 0 ? NONE : cells[amount % count];
}

static bool choose_new(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = free_cell(process);
    call->context = context_for(process, 0, raw->subject);
    if (call->cell == NONE || call->context == NONE)
        return false;
    call->device = process->contexts[call->context].device;
    call->bytes = sizes[raw->amount % SIZES];
    call->choice = raw->amount / SIZES % 2;
    if (raw->kind == BLOCK)
        call->bytes = (1 + raw->amount % 6) * (raw->amount % 7 == 6 ? 8 : 2) * MIB;
    if (raw->kind == ARRAY)
        call->bytes = call->bytes < 4 ? 4 : call->bytes / 4 * 4;
    if (raw->kind == MODULE || raw->kind == LIBRARY)
        call->choice = raw->amount / SIZES % 3;
    if (raw->kind == POOL)
        call->choice = raw->amount % 4;
    if (raw->kind == LIBRARY && call->bytes < MIB) /* small arrays are charged when they are measured */
        call->bytes = MIB;
    if (raw->kind == POOLED) {
        call->choice = raw->subject % 3 == 0
                           ? NONE
                           : cell_for(process, raw->subject % 3 == 1 ? POOL_SHARE : POOL_TRIM, raw->subject / 3);
        call->other_cell = stream_for(process, call->device, raw->amount);
        if (call->choice != NONE && process->things[call->choice].device != call->device)
            call->choice = NONE;
    }
    return true;
}

static bool choose_green(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = free_cell(process);
    call->device = raw->subject % grants[process->grant].content->device_count;
    return call->cell != NONE && process->contexts[call->device].attach_count > 0;
}

static bool choose_of_block(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = free_cell(process);
    call->other_cell = cell_for(process, raw->kind, raw->subject);
    if (call->cell == NONE || call->other_cell == NONE)
        return false;
    call->device = process->things[call->other_cell].device;
    return true;
}

static bool choose_tile(const struct raw *raw, const struct process *process, struct call *call)
{
    call->other_cell = cell_for(process, TILE, raw->subject);
    for (call->cell = 0; call->cell < CELLS && process->things[call->cell].kind != A_SPARSE_ARRAY; call->cell++)
        ;
    if (call->other_cell == NONE || call->cell == CELLS ||
        process->things[call->cell].device != process->things[call->other_cell].device)
        return false;
    call->context = process->things[call->cell].context;
    call->device = process->things[call->cell].device;
    /* A block that is replaced in a tile stays charged until the array is destroyed, although the card has it back
     * before. */
    call->choice = books_tile(&process->things[call->cell], process->things[call->other_cell].share);
    return process->things[call->cell].tiles[TILES - 1] == NULL;
}

/* The first file descriptor, from the number on, that a process of this grant can import, of a pool or of a block. */
static uint32_t file_for(const struct process *process, bool is_pool, uint32_t subject)
{
    for (uint32_t i = 0; i < FILES; i++) {
        uint32_t file = (subject + i) % FILES;
        const struct share *share = &books.shares[files[file].share_index];
        if (files[file].fd > 0 && files[file].grant_index == process->grant && share->is_pool == is_pool &&
            share->device < grants[process->grant].content->device_count)
            return file;
    }
    return NONE;
}

static bool choose_import(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = free_cell(process);
    call->choice = file_for(process, raw->kind == POOL_IMPORT, raw->subject);
    if (call->cell == NONE || call->choice == NONE)
        return false;
    call->other_cell = files[call->choice].share_index;
    call->bytes = books.shares[call->other_cell].bytes;
    call->device = books.shares[call->other_cell].device;
    call->context = context_on(process, call->device);
    return raw->kind == IMPORT || call->context != NONE;
}

static bool may_be_opened(const struct share *share)
{
    return share->is_used && !share->is_pool && share->handle[0] != 0 && share->maker_references > 0;
}

static bool choose_open(const struct raw *raw, const struct process *process, struct call *call)
{
    const struct share *share = &books.shares[raw->subject % SHARES];
    for (unsigned i = 0; i < SHARES && !may_be_opened(share); i++)
        share = &books.shares[(raw->subject + i + 1) % SHARES];
    if (!may_be_opened(share) || share->maker_process == NONE)
        return false;
    const struct process *maker = &books.processes[share->maker_process];
    call->other_cell = (uint32_t)(share - books.shares);
    call->cell = free_cell(process);
    call->device = share->device;
    call->context = context_on(process, share->device);
    memcpy(call->handle, share->handle, sizeof call->handle);
    return maker != process && maker->grant == process->grant && call->cell != NONE && call->context != NONE;
}

/* An address in an exported pool, for a process that imported the pool. */
static bool choose_pool_share(const struct raw *raw, const struct process *process, struct call *call)
{
    uint32_t cells[CELLS], count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        if (process->things[c].kind == POOL_POINTER && process->things[c].pool_cell != NONE &&
            process->things[process->things[c].pool_cell].share != NULL)
            cells[count++] = c;
    if (count == 0)
        return false;
    call->cell = cells[raw->subject % count];
    call->device = process->things[call->cell].device;
    call->context = context_on(process, call->device);
    return call->context != NONE;
}

static bool choose_pool_open(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = free_cell(process);
    call->choice = cell_for(process, POOL_OPEN, raw->subject);
    if (call->cell == NONE || call->choice == NONE)
        return false;
    const struct thing *pool = &process->things[call->choice];
    call->other_cell = (uint32_t)(pool->share - books.shares);
    call->device = pool->device;
    call->context = context_on(process, pool->device);
    memcpy(call->handle, pool->share->handle, sizeof call->handle);
    return call->context != NONE;
}

static bool choose_limit(const struct raw *raw, const struct process *process, struct call *call)
{
    static const uint64_t values[] = {512, 1024, 2048, 4096, 8 * MIB, 9 * MIB, 20 * MIB, 48 * MIB};
    call->context = context_for(process, 0, raw->subject);
    call->choice = raw->amount % 3;
    call->bytes = values[(call->choice == 0 ? 0 : 4) + raw->amount / 3 % 4];
    call->device = call->context == NONE ? 0 : process->contexts[call->context].device;
    return call->context != NONE;
}

static bool choose_of_cell(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = cell_for(process, raw->kind, raw->subject);
    if (call->cell == NONE)
        return false;
    const struct thing *thing = &process->things[call->cell];
    call->device = thing->device;
    call->context = thing->context != NONE ? thing->context : context_on(process, thing->device);
    if (raw->kind == FREE_ASYNC || raw->kind == LAUNCH)
        call->other_cell = stream_for(process, call->device, raw->amount);
    bool needs_context = raw->kind != GRAPH_DESTROY && raw->kind != HANDLE_RELEASE && raw->kind != UNMAP &&
                         raw->kind != EXPORT && raw->kind != LIBRARY_UNLOAD;
    bool frees = raw->kind == FREE || raw->kind == FREE_ASYNC;
    if (raw->kind == POOL_DESTROY && thing->share != NULL && any_blocked(process))
        return false; /* a free that waits for a stream stays in the pool after the handle is gone */
    bool is_unsure = (raw->kind == SHARE && thing->kind == SUBALLOCATION &&
                      process->contexts[thing->context].is_own_block_unsure) ||
                     (frees && books_may_stay(&books, raw->process_index, thing)) ||
                     (raw->kind == GREEN_DESTROY && books_may_move(&books, raw->process_index, thing->context));
    return (call->context != NONE || !needs_context) && !is_unsure;
}

static bool choose_library_use(const struct raw *raw, const struct process *process, struct call *call)
{
    call->cell = cell_for(process, raw->kind, raw->subject);
    call->context = context_for(process, 0, raw->amount);
    call->device = call->context == NONE ? 0 : process->contexts[call->context].device;
    return call->cell != NONE && call->context != NONE;
}

static bool choose_look(const struct raw *raw, const struct process *process, struct call *call)
{
    call->context = context_for(process, 0, raw->subject);
    call->device = call->context == NONE ? 0 : process->contexts[call->context].device;
    return call->context != NONE && (raw->kind == LOOK || !any_blocked(process));
}

/* The call that these numbers select. False: it is not possible now. */
static bool choose(const struct raw *raw, struct call *call)
{
    const struct process *process = &books.processes[raw->process_index];
    *call = (struct call){.kind = raw->kind, .context = NONE, .cell = NONE, .other_cell = NONE};
    call->thread_number = (raw->subject + raw->amount) / 4 % 2;
    switch (raw->kind) {
    case RETAIN:
    case RELEASE:
    case RESET:
    case CREATE:
    case DESTROY: return choose_context(raw, process, call);
    case ALLOCATE:
    case PITCHED:
    case MANAGED:
    case POOL:
    case POOLED:
    case STREAM:
    case GRAPH:
    case BLOCK:
    case ARRAY:
    case SPARSE:
    case LIBRARY:
    case MODULE: return choose_new(raw, process, call);
    case HANDLE_RETAIN:
    case MAP: return choose_of_block(raw, process, call);
    case TILE: return choose_tile(raw, process, call);
    case IMPORT:
    case POOL_IMPORT: return choose_import(raw, process, call);
    case POOL_SHARE: return choose_pool_share(raw, process, call);
    case POOL_OPEN: return choose_pool_open(raw, process, call);
    case OPEN: return choose_open(raw, process, call);
    case LIMIT: return choose_limit(raw, process, call);
    case GREEN: return choose_green(raw, process, call);
    case LIBRARY_USE: return choose_library_use(raw, process, call);
    case LOOK:
    case SYNCHRONIZE: return choose_look(raw, process, call);
    case LOSE: return true;
    case RUN: return false;
    default: return choose_of_cell(raw, process, call);
    }
}

/* -------------------------------------------------------------------------------------------------------------- steps
 */

static void keep_file(int fd, unsigned share_index, unsigned grant_index)
{
    for (unsigned i = 0; i < FILES; i++)
        if (files[i].fd == 0) {
            files[i].fd = fd;
            files[i].share_index = share_index;
            files[i].grant_index = grant_index;
            return;
        }
    close(fd);
    books.shares[share_index].file_count--;
}

static void print_call(uint32_t process_index, const struct call *call, int code, const struct snapshot *snapshot)
{
    note("process %u %s device %d context %d cell %d other %d choice %d bytes %llu -> %d; charged %.3f MiB, holds %.3f",
         process_index, names[call->kind], (int)call->device, (int)call->context, (int)call->cell,
         (int)call->other_cell, (int)call->choice, (unsigned long long)call->bytes, code,
         mib(snapshot->charged_bytes[process_index][call->device]),
         mib(snapshot->figure_bytes[process_index][call->device]));
}

/* A context that was made and then refused, for its libraries, leaves its charge as the last one of a process does. */
static void context_refused(const struct snapshot *before, const struct snapshot *after, uint32_t process_index,
                            uint32_t device)
{
    struct process *process = &books.processes[process_index];
    uint64_t added_bytes = after->charged_bytes[process_index][device] - before->charged_bytes[process_index][device];
    if (!books_has_context(&books, process_index, device) && added_bytes == books.context_charges[process->grant])
        process->keeps_context[device] = true;
}

static void make_call(uint32_t process_index, const struct call *call)
{
    struct process *process = &books.processes[process_index];
    struct answer answer = {0};
    struct snapshot before = take_snapshot();
    uint64_t used_bytes = used_by(&before, process->grant, call->device),
             limit_bytes = before.limit_bytes[process->grant][call->device];
    bool imports = call->kind == IMPORT || call->kind == POOL_IMPORT;
    int fd = ask(process_index, call, imports ? files[call->choice].fd : -1, &answer);
    struct snapshot after = take_snapshot();
    print_call(process_index, call, answer.code, &after);
    check_answer(&before, &after, process_index, call, answer.code);
    if (answer.code == OUT_OF_MEMORY && (call->kind == MODULE || call->kind == LIBRARY))
        process->code_bytes += 8 * answer.value; /* the code may have been loaded before the refusal */
    if (answer.code == OUT_OF_MEMORY && (call->kind == RETAIN || call->kind == CREATE))
        context_refused(&before, &after, process_index, call->device);
    if (answer.code == 0 || (answer.code == 1 && call->kind == LAUNCH))
        books_enter(&books, process_index, call, &answer, used_bytes < limit_bytes ? limit_bytes - used_bytes : 0);
    books_pools(&books, process_index, call, &answer);
    if (fd >= 0)
        keep_file(fd, (unsigned)(process->things[call->cell].share - books.shares), process->grant);
    check(&after, process_index, call, answer.code);
    if (call->kind == LOOK && answer.value != (limit_bytes > used_by(&after, process->grant, call->device)
                                                   ? limit_bytes - used_by(&after, process->grant, call->device)
                                                   : 0))
        fail("process %u, device %u: %.3f MiB are free, it says", process_index, call->device, mib(answer.value));
}

static void look(uint32_t process_index, uint32_t device)
{
    struct call call = {.kind = LOOK,
                        .device = device,
                        .context = context_on(&books.processes[process_index], device),
                        .cell = NONE,
                        .other_cell = NONE};
    if (books.processes[process_index].is_alive && call.context != NONE)
        make_call(process_index, &call);
}

/* A refusal while a free waits for a stream takes a second. */
static bool would_wait(uint32_t process_index, const struct call *call)
{
    const struct process *process = &books.processes[process_index];
    if (!any_blocked(process) || books_wanted(&books, process_index, call) == 0)
        return false;
    struct snapshot snapshot = take_snapshot();
    if (used_by(&snapshot, process->grant, call->device) + books_wanted(&books, process_index, call) <=
        snapshot.limit_bytes[process->grant][call->device])
        return false;
    return waits_allowed == 0 || waits_allowed-- == 0;
}

static void after_an_end(uint32_t grant)
{
    struct call nothing = {.kind = RUN, .cell = NONE, .device = 0, .context = NONE};
    for (uint32_t process_index = 0; process_index < PROCESSES; process_index++)
        for (uint32_t device = 0; books.processes[process_index].is_alive &&
                                  books.processes[process_index].grant == grant && device < DEVICES;
             device++)
            look(process_index, device);
    struct snapshot snapshot = take_snapshot();
    check(&snapshot, PROCESSES, &nothing, 0);
}

static void kill_running(uint32_t process_index, uint32_t seed)
{
    struct call run = {.kind = RUN, .cell = NONE, .choice = seed};
    run.context = context_for(&books.processes[process_index], 0, seed);
    run.device = run.context == NONE ? 0 : books.processes[process_index].contexts[run.context].device;
    if (run.context == NONE)
        return;
    ask(process_index, &run, -1, NULL);
    usleep(seed % 1000);
    reap(process_index, SIGKILL);
}

static void kill_starting(uint32_t process_index, uint32_t seed)
{
    books.processes[process_index].pid = spawn(process_index, seed % GRANTS);
    usleep(seed % 4000);
    reap(process_index, SIGKILL);
}

static unsigned kill_count;

static void do_deed(const struct raw *raw)
{
    struct process *process = &books.processes[raw->process_index];
    uint32_t file = raw->subject % FILES, grant_index = process->grant;
    bool is_start = raw->kind == START || raw->kind == KILL_STARTING;
    if (raw->kind != CLOSE_FILE && process->is_alive == is_start)
        return;
    if (raw->kind == CLOSE_FILE && files[file].fd == 0)
        return;
    note("process %u %s %u", raw->process_index, names[raw->kind], raw->subject);
    switch (raw->kind) {
    case START: start(raw->process_index, raw->subject % 4 == 3 ? 1 : 0); return;
    case END: reap(raw->process_index, 0); break;
    case KILL: reap(raw->process_index, SIGKILL); break;
    case KILL_RUNNING: kill_running(raw->process_index, raw->subject * 37 + raw->amount); break;
    case KILL_STARTING: kill_starting(raw->process_index, raw->subject * 37 + raw->amount); break;
    default:
        close(files[file].fd);
        files[file].fd = 0;
        books_close_file(&books, files[file].share_index);
    }
    kill_count += raw->kind != END && raw->kind != CLOSE_FILE;
    after_an_end(grant_index);
}

/* Makes one step. False: it was not possible. */
static bool step(const struct raw *raw)
{
    struct call call;
    if (raw->kind >= CALL_KINDS) {
        do_deed(raw);
        return true;
    }
    if (!books.processes[raw->process_index].is_alive || !choose(raw, &call) || would_wait(raw->process_index, &call))
        return false;
    bool is_measuring = measures(&call) || may_measure(&call); /* so that its charge is known to the byte */
    if (is_measuring)
        look(raw->process_index, call.device);
    make_call(raw->process_index, &call);
    if (is_measuring)
        look(raw->process_index, call.device);
    return true;
}

/* Ends all processes. Then nothing is held or charged. */
static void finish(bool has_failed)
{
    for (uint32_t process_index = 0; process_index < PROCESSES; process_index++)
        if (books.processes[process_index].is_alive)
            reap(process_index, has_failed || process_index % 2 == 0 ? SIGKILL : 0);
    for (unsigned i = 0; i < FILES; i++)
        if (files[i].fd > 0) {
            close(files[i].fd);
            files[i].fd = 0;
        }
    memset(books.shares, 0, sizeof books.shares);
    struct snapshot snapshot = take_snapshot();
    memcpy(books.left_bytes, snapshot.left_bytes, sizeof books.left_bytes);
    memcpy(books.max_left_bytes, snapshot.left_bytes, sizeof books.max_left_bytes);
    for (uint32_t grant_index = 0; grant_index < GRANTS && !has_failed; grant_index++) {
        start(0, grant_index);
        for (uint32_t device = 0; device < grants[grant_index].content->device_count; device++) {
            step(&(struct raw){RETAIN, 0, device, 0});
            step(&(struct raw){ALLOCATE, 0, device, 0});
            look(0, device);
        }
        reap(0, 0);
    }
    snapshot = take_snapshot();
    for (uint32_t device = 0; device < grants[0].content->device_count && !has_failed; device++)
        if (snapshot.used_bytes[device] != 0 || snapshot.left_bytes[0][device] != 0 ||
            snapshot.left_bytes[1][device] != 0)
            fail("device %u: %.3f MiB are held when all have ended, %.3f and %.3f charged", device,
                 mib(snapshot.used_bytes[device]), mib(snapshot.left_bytes[0][device]),
                 mib(snapshot.left_bytes[1][device]));
    memset(books.left_bytes, 0, sizeof books.left_bytes);
    for (uint32_t grant_index = 0; grant_index < GRANTS && has_failed; grant_index++)
        memset(grants[grant_index].region, 0, sizeof(struct hetero_region));
}

/* ------------------------------------------------------------------------------------------------------------ programs
 */

static uint32_t rng(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static uint32_t random_kind(uint64_t *state, unsigned steps_per_kill)
{
    static const uint32_t frequent_kinds[] = {ALLOCATE,   ALLOCATE, FREE,  FREE,        POOLED,     FREE_ASYNC,
                                              FREE_ASYNC, LAUNCH,   START, POOL_EXPORT, POOL_SHARE, POOL_OPEN};
    if (steps_per_kill > 0 && rng(state) % steps_per_kill == 0)
        return KILL + rng(state) % 3;
    if (rng(state) % 3 == 0)
        return frequent_kinds[rng(state) % (sizeof frequent_kinds / sizeof *frequent_kinds)];
    uint32_t kind = rng(state) % (DEED_KINDS - 2);
    kind += kind >= LOSE; /* which has random numbers of its own, since it is to change nothing */
    bool is_end = kind == END || kind == KILL || kind == KILL_RUNNING || kind == KILL_STARTING || kind == RESET;
    return is_end && rng(state) % 8 != 0 ? (uint32_t)LOOK : kind;
}

/* Runs episodes of a thousand steps, each with its own seed. */
static int run_random(uint64_t seed, uint64_t call_count, uint64_t wanted_kill_count)
{
    uint64_t made_count = 0, episode = seed, start_s = (uint64_t)time(NULL);
    unsigned one_kill_in = wanted_kill_count == 0 ? 0 : (unsigned)(call_count / wanted_kill_count) + 1;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    for (; made_count < call_count || kill_count < wanted_kill_count; episode++) {
        uint64_t state = episode, state_of_losses = episode;
        trace_count = 0;
        waits_allowed = episode % 256 == 0;
        for (unsigned steps = 0; steps < 1000 && failure[0] == '\0'; steps++) {
            struct raw raw = {random_kind(&state, one_kill_in), rng(&state) % PROCESSES, rng(&state) % 64,
                              rng(&state) % 64};
            made_count += step(&raw);
            if (rng(&state_of_losses) % 16 == 0 && failure[0] == '\0')
                made_count += step(&(struct raw){LOSE, rng(&state_of_losses) % PROCESSES, 0, 0});
        }
        finish(failure[0] != '\0');
        if (failure[0] != '\0') {
            printf("seed %llu, after %llu calls:\n", (unsigned long long)episode, (unsigned long long)made_count);
            print_trace(getenv("MODEL_TRACE") ? TRACE : 40);
            return 1;
        }
    }
    printf("%llu calls, %u kills, %llu s; the next seed is %llu\n", (unsigned long long)made_count, kill_count,
           (unsigned long long)((uint64_t)time(NULL) - start_s), (unsigned long long)episode);
    return 0;
}

static uint32_t kind_named(const char *name)
{
    uint32_t kind = 0;
    while (kind < DEED_KINDS && strcmp(names[kind], name) != 0)
        kind++;
    return kind;
}

/* Makes a step. If it is not possible, starts the process, gives it a context, or allocates. */
static unsigned step_or_another(struct raw raw)
{
    if (!books.processes[raw.process_index].is_alive)
        raw.kind = START;
    if (step(&raw))
        return 1;
    raw.kind = context_for(&books.processes[raw.process_index], 0, 0) == NONE ? RETAIN : ALLOCATE;
    return step(&raw);
}

/* Reads lines of KIND PROCESS SUBJECT AMOUNT. A line of one dot ends all processes, and prints the result. */
static int run_script(void)
{
    char line[256], name[64];
    struct raw raw;
    unsigned made_count = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "%63s %u %u %u", name, &raw.process_index, &raw.subject, &raw.amount) == 4) {
            raw.kind = kind_named(name);
            if (failure[0] == '\0' && raw.kind < DEED_KINDS && raw.process_index < PROCESSES)
                made_count += step_or_another(raw);
            continue;
        }
        finish(failure[0] != '\0');
        if (failure[0] != '\0')
            print_trace(TRACE);
        printf("%s %u\n", failure[0] == '\0' ? "held" : "failed", made_count);
        fflush(stdout);
        failure[0] = '\0';
        trace_count = made_count = 0;
    }
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "work") == 0)
        return work(atoi(arguments[2]));
    if (count < 5)
        return 2;
    own_path = "/proc/self/exe";
    limiter_path = arguments[1];
    for (unsigned grant_index = 0; grant_index < GRANTS; grant_index++) {
        grants[grant_index].directory = arguments[2 + grant_index];
        grants[grant_index].content = map_file(arguments[2 + grant_index], "grant", sizeof(struct hetero_grant),
                                               PROT_READ);
        grants[grant_index].region = map_file(arguments[2 + grant_index], "usage", sizeof(struct hetero_region),
                                              PROT_READ | PROT_WRITE);
        const struct hetero_grant_device *terms = &grants[grant_index].content->devices[0];
        books.context_charges[grant_index] = terms->flags & HETERO_FLAG_CONTEXT ? terms->context_bytes : 0;
        snprintf(grants[grant_index].environment_setting, sizeof grants[grant_index].environment_setting,
                 "HETERO_GRANT=%s/grant", arguments[2 + grant_index]);
    }
    open_cards();
    books.context_bytes = strtoull(required(getenv("MODEL_CONTEXT"), "MODEL_CONTEXT"), NULL, 10);
    books.thread_count = strtoull(required(getenv("MODEL_THREADS"), "MODEL_THREADS"), NULL, 10);
    if (strcmp(arguments[4], "script") == 0)
        return run_script();
    return count == 8 ? run_random(strtoull(arguments[5], NULL, 10), strtoull(arguments[6], NULL, 10),
                                   strtoull(arguments[7], NULL, 10))
                      : 2;
}
