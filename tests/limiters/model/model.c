/* Random calls from several processes of two grants, each compared with the reference model (books.h):
 *
 *     model LIMITER GRANT GRANT random SEED CALLS KILLS
 *     model LIMITER GRANT GRANT script < calls
 *
 * After each call: the answer; what the usage region says is charged for each process; what the card says it holds for
 * each process and in all. What is held is charged, what is charged is held, but for what docs/charges.md says of
 * each kind, and when all is freed and all processes ended both are 0.
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

/* What is done to processes, beside the calls that they make. */
#define DEEDS(X) X(START) X(END) X(KILL) X(KILL_RUNNING) X(KILL_STARTING) X(CLOSE_FILE)
enum { FIRST_DEED = CALL_KINDS - 1, DEEDS(ENUM) DEED_KINDS };

#define NAME(name) #name,
static const char *const names[] = {CALLS(NAME) DEEDS(NAME)};

struct grant {
    const char *directory;
    const struct hetero_grant *terms;
    struct hetero_region *region;
    char assignment[4096]; /* HETERO_GRANT */
};

static const char *self, *limiter;
static struct grant grants[GRANTS];
static struct books books;
static int sockets[PROCESSES];
static struct {
    int fd;
    unsigned share, grant;
} files[FILES];           /* fd 0: none */
static unsigned patience; /* how many refusals may still be waited for */

/* ------------------------------------------------------------------------------------------------------------ a trace
 */

static char trace[TRACE][160];
static unsigned traced;
static char failure[512];

static void __attribute__((format(printf, 1, 2))) note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(trace[traced++ % TRACE], sizeof trace[0], format, arguments);
    va_end(arguments);
}

/* Only the first failure is told; what follows may come of it. */
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

static void print_trace(unsigned most)
{
    unsigned first = traced > most ? traced - most : 0;
    for (unsigned i = first; i < traced; i++)
        printf("  %s\n", trace[i % TRACE]);
    printf("  %s\n", failure);
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------------- what the card says, and
 * what the regions say */

#define NVML_ROWS 64u
struct nvml_row {
    unsigned pid;
    unsigned long long memory;
    unsigned instances[2];
};
static int (*nvml_memory)(void *, uint64_t[3]), (*nvml_rows)(void *, unsigned *, struct nvml_row *);
static void *cards[DEVICES];

struct seen {
    uint64_t charged[PROCESSES][DEVICES], figure[PROCESSES][DEVICES];
    uint64_t left[GRANTS][DEVICES]; /* of processes that ended */
    uint64_t used[DEVICES], limit[GRANTS][DEVICES];
    bool slot[PROCESSES]; /* whether it ever was charged: who only looks has none, and sweeps none */
};

static void *required(void *found, const char *what)
{
    if (found != NULL && found != MAP_FAILED)
        return found;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
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
    for (uint32_t d = 0; d < grants[0].terms->device_count; d++)
        by_uuid(grants[0].terms->devices[d].uuid, &cards[d]);
}

static void see_card(struct seen *seen, uint32_t device)
{
    uint64_t memory[3] = {0}; /* total, free, used */
    struct nvml_row rows[NVML_ROWS];
    unsigned count = NVML_ROWS;
    if (nvml_memory(cards[device], memory) != 0 || nvml_rows(cards[device], &count, rows) != 0)
        fail("NVML does not answer");
    seen->used[device] = memory[2];
    for (unsigned i = 0; i < count && i < NVML_ROWS; i++)
        for (unsigned p = 0; p < PROCESSES; p++)
            if (books.processes[p].lives && books.processes[p].pid == (int)rows[i].pid)
                seen->figure[p][device] = rows[i].memory;
}

/* A slot is a live process's, or what others have open of one that ended; the next sweep clears all else. */
static void see_slot(struct seen *seen, uint32_t grant, const struct hetero_region_slot *slot)
{
    for (uint32_t d = 0; d < DEVICES && slot->pid != 0; d++) {
        uint64_t shared = slot->reports[HETERO_REPORT_SHARED][d], *to = &seen->left[grant][d],
                 bytes = slot->used_bytes[d];
        for (unsigned p = 0; p < PROCESSES; p++)
            if (books.processes[p].lives && books.processes[p].pid == (int)slot->pid)
                to = &seen->charged[p][d], seen->slot[p] = true;
        if (to == &seen->left[grant][d] && slot->pid != HETERO_REGION_ORPHANED)
            bytes = !books_opened(&books, grant) ? 0 : shared < bytes ? shared : bytes;
        *to += bytes;
    }
}

static struct seen see(void)
{
    struct seen seen = {0};
    for (uint32_t d = 0; d < grants[0].terms->device_count; d++)
        see_card(&seen, d);
    for (uint32_t g = 0; g < GRANTS; g++) {
        for (uint32_t s = 0; s < grants[g].region->reached_slots; s++)
            see_slot(&seen, g, &grants[g].region->slots[s]);
        for (uint32_t d = 0; d < grants[g].terms->device_count; d++)
            seen.limit[g][d] = grants[g].terms->devices[d].memory_bytes;
    }
    return seen;
}

static uint64_t used_by(const struct seen *seen, uint32_t grant, uint32_t device)
{
    uint64_t bytes = seen->left[grant][device];
    for (uint32_t p = 0; p < PROCESSES; p++)
        bytes += books.processes[p].grant == grant ? seen->charged[p][device] : 0;
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

/* What the driver's figure tells beyond charges and contexts is charged after a call that measures. Code that is loaded
 * is not, up to eight times its image. What was refused was there when it was measured. Where something is charged that
 * the card does not hold yet, nobody can tell by the figure that what was beyond is gone. */
static void check_measured(const struct seen *seen, uint32_t p, uint32_t d, struct range range, bool refused)
{
    struct process *of = &books.processes[p];
    uint64_t charged = seen->charged[p][d], figure = seen->figure[p][d];
    uint64_t known = range.least + books_uncharged(&books, p, d) - books_stuck(&books, p, d) -
                     books_managed(&books, p, d);
    uint64_t most = figure > known ? figure - known : 0, less = of->code + (refused ? BLOCK_ : 0),
             least = most > less ? most - less : 0;
    uint64_t hidden = books_unseen(&books, p, d) - books_stuck(&books, p, d) - books_managed(&books, p, d);
    for (unsigned c = 0; c < CONTEXTS; c++) /* whether heaps and queues are there depends on the kernels that ran */
        hidden += of->contexts[c].attached > 0 && of->contexts[c].device == d ? of->contexts[c].limits : 0;
    uint64_t stays = figure + hidden > known ? figure + hidden - known : 0;
    of->beyond[d] = charged - range.least < stays ? charged - range.least : stays;
    if (range.least != range.most)
        return;
    if (charged < range.least + least || charged > range.least + stays)
        fail("process %u, device %u: charged %.3f MiB; %.3f by its calls, and %.3f to %.3f by the driver's figure", p,
             d, mib(charged), mib(range.least), mib(least), mib(stays));
}

static void check_charges(const struct seen *seen, uint32_t p, uint32_t d, bool measured, bool may_be_measured,
                          bool refused)
{
    struct process *of = &books.processes[p];
    struct range range = books_charged(&books, p, d);
    uint64_t charged = seen->charged[p][d];
    if (!books_has_context(&books, p, d))
        of->beyond[d] = 0;
    bool fits = charged >= range.least + of->beyond[d] && charged <= range.most + of->beyond[d];
    may_be_measured = may_be_measured || of->unsure[d];
    of->unsure[d] = may_be_measured && range.least != range.most;
    if (books_has_context(&books, p, d) && (measured || (may_be_measured && !fits)))
        check_measured(seen, p, d, range, refused);
    else if (!fits)
        fail("process %u, device %u: charged %.3f MiB, not %.3f to %.3f", p, d, mib(charged),
             mib(range.least + of->beyond[d]), mib(range.most + of->beyond[d]));
}

/* Held is charged, and charged is held. */
static void check_figure(const struct seen *seen, uint32_t p, uint32_t d)
{
    uint64_t charged = seen->charged[p][d], figure = seen->figure[p][d];
    uint64_t more = books_uncharged(&books, p, d) + books_streams(&books, p, d) + books_taken_over(&books, p, d) +
                    books.processes[p].code;
    uint64_t less = books_unseen(&books, p, d) + books.processes[p].beyond[d]; /* until it is measured again */
    if (figure > charged + more)
        fail("process %u, device %u: holds %.3f MiB, charged %.3f and %.3f for contexts", p, d, mib(figure),
             mib(charged), mib(more));
    if (charged > figure + less)
        fail("process %u, device %u: charged %.3f MiB, holds %.3f, and %.3f may come", p, d, mib(charged), mib(figure),
             mib(less));
}

static void check_left(const struct seen *seen, uint32_t g, uint32_t d, bool looked)
{
    uint64_t left = seen->left[g][d], expected = books.left[g][d];
    bool opened = books_opened(&books, g);
    if (left > books.most_left[g][d] || (opened && left < expected) || (!opened && looked && left != 0))
        fail("grant %u, device %u: %.3f MiB charged for what ended processes shared, not %.3f", g, d, mib(left),
             mib(opened || !looked ? expected : 0));
    books.left[g][d] = opened ? left : 0; /* any sweep before somebody opens it gives it back */
    if (looked)
        books.most_left[g][d] = left;
}

static void check_card(const struct seen *seen, uint32_t d)
{
    uint64_t bytes = books_orphans(&books, d), left = 0;
    for (uint32_t g = 0; g < GRANTS; g++)
        left += seen->left[g][d];
    bytes = bytes > left ? bytes : left;
    for (uint32_t p = 0; p < PROCESSES; p++)
        bytes += seen->charged[p][d] + books_uncharged(&books, p, d) + books_streams(&books, p, d) +
                 books.processes[p].code;
    if (seen->used[d] > bytes)
        fail("device %u: holds %.3f MiB, charged and known %.3f", d, mib(seen->used[d]), mib(bytes));
}

static bool may_measure(const struct call *call)
{
    return call->kind == IMPORT || call->kind == OPEN || call->kind == CLOSE || call->kind == LIBRARY ||
           call->kind == POOL_EXPORT || call->kind == POOL_IMPORT || call->kind == POOL_OPEN ||
           call->kind == LIBRARY_USE || call->kind == LIBRARY_UNLOAD || call->kind == CREATE ||
           call->kind == GRAPH_DESTROY || call->kind == LAUNCH || /* the first time */
           call->kind == RETAIN;                                  /* refused for its libraries, it ends again */
}

static void check(const struct seen *seen, uint32_t process, const struct call *call, int code)
{
    for (uint32_t p = 0; p < PROCESSES; p++)
        for (uint32_t d = 0; books.processes[p].lives && d < grants[books.processes[p].grant].terms->device_count;
             d++) {
            bool stands = call->kind == RELEASE && books.processes[p].contexts[call->device].attached > 0;
            bool measured = p == process && d == call->device && measures(call) && !stands;
            check_charges(seen, p, d, measured && code == 0, measured || (p == process && may_measure(call)),
                          code != 0);
            check_figure(seen, p, d);
        }
    for (uint32_t d = 0; d < grants[0].terms->device_count; d++) {
        for (uint32_t g = 0; g < GRANTS; g++)
            check_left(seen, g, d,
                       call->kind == LOOK && call->device == d && books.processes[process].grant == g &&
                           seen->slot[process]);
        check_card(seen, d);
    }
}

static bool any_blocked(const struct process *of)
{
    for (uint32_t c = 0; c < CELLS; c++)
        if (of->things[c].kind == A_STREAM && of->things[c].blocked)
            return true;
    return false;
}

/* What the process may be charged for by its figure at any call, and somebody else is charged for as well: what it has
 * open of who let go of it. */
static uint64_t charged_twice(uint32_t p, uint32_t d)
{
    return books_has_context(&books, p, d) ? books_taken_over(&books, p, d) : 0;
}

/* A refusal is right where the grant has no room, after what the process itself keeps of freed memory is given back. */
static void check_refusal(const struct seen *before, uint32_t p, const struct call *call)
{
    struct process *of = &books.processes[p];
    struct range range = books_charged(&books, p, call->device);
    uint64_t used = used_by(before, of->grant, call->device), wanted = books_wanted(&books, p, call);
    uint64_t limit = before->limit[of->grant][call->device];
    used -= before->charged[p][call->device] - range.least - of->beyond[call->device];
    if (!any_blocked(of))
        used -= of->pools[call->device] - of->pools_least[call->device];
    if (used + wanted + charged_twice(p, call->device) <= limit)
        fail("process %u, device %u: %.3f MiB refused with %.3f of %.3f in use", p, call->device, mib(wanted),
             mib(used), mib(limit));
}

/* A library counts on each device that the process has a context on, so it may not fit on another. */
static bool elsewhere(const struct seen *before, uint32_t p, const struct call *call)
{
    uint32_t g = books.processes[p].grant;
    for (uint32_t d = 0; call->kind == LIBRARY && d < grants[g].terms->device_count; d++)
        if (d != call->device && used_by(before, g, d) + books_library(&books, p, d, call->bytes) > before->limit[g][d])
            return true;
    return false;
}

static void check_answer(const struct seen *before, const struct seen *after, uint32_t p, const struct call *call,
                         int code)
{
    uint32_t g = books.processes[p].grant, d = call->device;
    uint64_t wanted = books_wanted(&books, p, call);
    bool may_fail = call->kind == OPEN || (call->kind == LAUNCH && code == 1) || elsewhere(before, p, call) ||
                    (call->kind == LIBRARY_USE && code == OUT_OF_MEMORY); /* by the figure, asked every 10 ms */
    /* By the driver's figure, which may tell more now than before. */
    bool beyond = measures(call) && used_by(after, g, d) + wanted > before->limit[g][d];
    if (code == OUT_OF_MEMORY && wanted > 0 && !beyond && !may_fail)
        check_refusal(before, p, call);
    else if (code != 0 && !may_fail && !beyond)
        fail("process %u: %s answers %d", p, names[call->kind], code);
    else if (code == 0 && wanted > 0 && used_by(after, g, d) > before->limit[g][d] + charged_twice(p, d) &&
             used_by(after, g, d) > used_by(before, g, d))
        fail("process %u, device %u: granted, and %.3f of %.3f MiB are in use", p, d, mib(used_by(after, g, d)),
             mib(before->limit[g][d]));
}

/* --------------------------------------------------------------------------------------------------------- processes
 */

static void *map_file(const char *directory, const char *name, size_t bytes, int protection)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    void *mapped = file < 0 ? NULL : mmap(NULL, bytes, protection, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return required(mapped, path);
}

static int spawn(uint32_t p, uint32_t g)
{
    static char preload[4096];
    const char *environment[512];
    unsigned count = 0;
    int pair[2], pid = -1;
    char number[16];
    for (char **at = environ; *at != NULL && count < 509; at++)
        environment[count++] = *at;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", limiter);
    environment[count++] = preload;
    environment[count++] = grants[g].assignment;
    environment[count] = NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    fcntl(pair[1], F_SETFD, 0);
    snprintf(number, sizeof number, "%d", pair[1]);
    char *arguments[] = {(char *)self, "work", number, NULL};
    posix_spawn(&pid, self, NULL, NULL, arguments, (char **)environment);
    close(pair[1]);
    sockets[p] = pair[0];
    return pid;
}

/* Make a call in a process; the descriptor that comes with the answer, or -1. */
static int ask(uint32_t p, const struct call *call, int file, struct answer *answer)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec whole = {(void *)call, sizeof *call};
    struct msghdr message = {.msg_iov = &whole, .msg_iovlen = 1};
    if (file >= 0) {
        memcpy(CMSG_DATA(&control.head), &file, sizeof file);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.bytes;
    }
    if (call != NULL && sendmsg(sockets[p], &message, MSG_NOSIGNAL) != sizeof *call)
        fail("process %u is gone", p);
    if (call != NULL && call->kind == RUN)
        return -1;
    whole = (struct iovec){answer, sizeof *answer};
    message = (struct msghdr){
        .msg_iov = &whole, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    if (recvmsg(sockets[p], &message, MSG_CMSG_CLOEXEC) != sizeof *answer) {
        fail("process %u ended", p);
        answer->code = -1;
    }
    if (message.msg_controllen > 0)
        memcpy(&file, CMSG_DATA(&control.head), sizeof file);
    return message.msg_controllen > 0 ? file : -1;
}

static void start(uint32_t p, uint32_t g)
{
    struct answer answer = {0};
    books.processes[p].grant = g;
    books.processes[p].pid = spawn(p, g);
    ask(p, NULL, -1, &answer);
    books.processes[p].lives = true;
}

static bool has_slot(const struct grant *grant, uint32_t pid)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/usage", grant->directory);
    int file = open(path, O_RDWR | O_CLOEXEC);
    bool locked = false;
    for (uint32_t s = 0; s < grant->region->reached_slots; s++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = s, .l_len = 1};
        locked = locked ||
                 (grant->region->slots[s].pid == pid && fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
    }
    close(file);
    return locked;
}

static bool is_on_a_card(uint32_t pid)
{
    struct nvml_row rows[NVML_ROWS];
    bool found = false;
    for (uint32_t d = 0; d < grants[0].terms->device_count; d++) {
        unsigned count = NVML_ROWS;
        nvml_rows(cards[d], &count, rows);
        for (unsigned i = 0; i < count && i < NVML_ROWS; i++)
            found = found || rows[i].pid == pid;
    }
    return found;
}

/* What tells that a process lives is mapped, and stays for as long as anybody reads its maps (/proc/PID/smaps, ps): up
 * to 47 ms after it was waited for, with two that read them all the time. */
static void await_end(const struct grant *grant, uint32_t pid)
{
    for (int tries = 0; tries < 2000 && (has_slot(grant, pid) || is_on_a_card(pid)); tries++)
        usleep(1000);
}

static void reap(uint32_t p, int signal)
{
    int status;
    if (signal != 0)
        kill(books.processes[p].pid, signal);
    close(sockets[p]);
    waitpid(books.processes[p].pid, &status, 0);
    await_end(&grants[books.processes[p].grant], (uint32_t)books.processes[p].pid);
    if (signal == 0 && status != 0)
        fail("process %u ended with status %#x", p, (unsigned)status);
    if (books.processes[p].lives)
        books_end(&books, p);
}

/* --------------------------------------------------------------------------------------- a call out of three numbers
 */

struct raw { /* a: what it is about; b: how much */
    uint32_t kind, process, a, b;
};

static const uint64_t sizes[] = {2 * MIB,      1,        512,           MIB - 512, MIB,     2 * MIB + 1, 5 * MIB,
                                 32 * MIB + 1, 16 * MIB, 64 * 1024 + 4, 24 * MIB,  64 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

/* An exported pool with memory in use, which outlives its name. */
static bool is_in_use(const struct thing *pool)
{
    return pool->share != NULL && pool->share->in_use > 0;
}

static bool is(const struct thing *thing, uint32_t kind)
{
    switch (kind) {
    case FREE:
        return thing->kind == POINTER || thing->kind == PIECE || thing->kind == BY_MANAGED || thing->kind == OF_POOL ||
               thing->kind == OPENED_IN_POOL || (thing->kind == AN_EXEC && thing->live);
    case FREE_ASYNC:
        return (thing->kind == POINTER && thing->block == 0) || thing->kind == OF_POOL ||
               (thing->kind == AN_EXEC && thing->live);
    case POOL_DESTROY: return thing->kind == POOL_OPENED || (thing->kind == A_POOL && !is_in_use(thing));
    case POOL_TRIM: return thing->kind == A_POOL;
    case POOL_EXPORT: return thing->kind == A_POOL && thing->exportable;
    case POOL_SHARE: return thing->kind == A_POOL && thing->share != NULL;
    case POOL_OPEN: return thing->kind == POOL_OPENED && thing->share->of_maker > 0 && thing->share->handle[0] != 0;
    case STREAM_DESTROY:
    case BLOCK_STREAM: return thing->kind == A_STREAM && !thing->blocked;
    case OPEN_STREAM: return thing->kind == A_STREAM && thing->blocked;
    case LAUNCH: return thing->kind == AN_EXEC && thing->owner_context != NONE;
    case GRAPH_DESTROY: return thing->kind == AN_EXEC;
    case HANDLE_RETAIN:
    case UNMAP: return thing->kind == A_MAPPING;
    case HANDLE_RELEASE:
    case MAP: return thing->kind == A_HANDLE;
    case EXPORT: return thing->kind == A_HANDLE && thing->exportable;
    case TILE: return thing->kind == A_HANDLE && !thing->imported && !thing->exportable;
    case SHARE: return (thing->kind == POINTER && thing->block == 0) || thing->kind == PIECE;
    case CLOSE: return thing->kind == OPENED;
    case ARRAY_DESTROY: return thing->kind == AN_ARRAY || thing->kind == A_SPARSE;
    case MODULE_UNLOAD: return thing->kind == A_MODULE;
    case LIBRARY_USE:
    case LIBRARY_UNLOAD: return thing->kind == A_LIBRARY;
    case GREEN_DESTROY: return thing->kind == A_GREEN;
    default: return false;
    }
}

/* The `a`th of the process's cells that are of use for this kind of call; NONE: there is none. */
static uint32_t cell_for(const struct process *of, uint32_t kind, uint32_t a)
{
    uint32_t found[CELLS], count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        if (is(&of->things[c], kind))
            found[count++] = c;
    return count == 0 ? NONE : found[a % count];
}

static uint32_t free_cell(const struct process *of)
{
    uint32_t cell = 0;
    while (cell < CELLS && of->things[cell].kind != NOTHING)
        cell++;
    return cell < CELLS ? cell : NONE;
}

static uint32_t context_for(const struct process *of, uint32_t from, uint32_t a)
{
    uint32_t found[CONTEXTS], count = 0;
    for (uint32_t c = from; c < CONTEXTS; c++)
        if (of->contexts[c].attached > 0)
            found[count++] = c;
    return count == 0 ? NONE : found[a % count];
}

/* A context on this device, or none. */
static uint32_t context_on(const struct process *of, uint32_t device)
{
    for (uint32_t c = 0; c < CONTEXTS; c++)
        if (of->contexts[c].attached > 0 && of->contexts[c].device == device)
            return c;
    return NONE;
}

static unsigned greens(const struct process *of, uint32_t device)
{
    unsigned count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        count += of->things[c].kind == A_GREEN && of->things[c].device == device;
    return count;
}

static bool choose_context(const struct raw *raw, const struct process *of, struct call *call)
{
    uint32_t devices = grants[of->grant].terms->device_count;
    call->device = raw->a % devices;
    switch (raw->kind) {
    case RETAIN: return of->contexts[call->device].attached < 2;
    case RELEASE:
    case RESET:
        call->context = call->device;
        return of->contexts[call->device].attached > greens(of, call->device) &&
               !books_may_move(&books, raw->process, call->context);
    case CREATE: call->other = of->contexts[2].attached == 0 ? 2 : 3; return of->contexts[call->other].attached == 0;
    default:
        call->context = context_for(of, 2, raw->a);
        call->device = call->context == NONE ? 0 : of->contexts[call->context].device;
        return call->context != NONE && !books_may_move(&books, raw->process, call->context);
    }
}

/* The stream of an ordered call: one of the program's on the same device, or its context's own. */
static uint32_t stream_for(const struct process *of, uint32_t device, uint32_t b)
{
    uint32_t found[CELLS], count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        if (of->things[c].kind == A_STREAM && of->things[c].device == device)
            found[count++] = c;
    return count == 0 || b % 3 == 0 ? NONE : found[b % count];
}

static bool choose_new(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = free_cell(of);
    call->context = context_for(of, 0, raw->a);
    if (call->cell == NONE || call->context == NONE)
        return false;
    call->device = of->contexts[call->context].device;
    call->bytes = sizes[raw->b % SIZES];
    call->choice = raw->b / SIZES % 2;
    if (raw->kind == BLOCK)
        call->bytes = (1 + raw->b % 6) * (raw->b % 7 == 6 ? 8 : 2) * MIB;
    if (raw->kind == ARRAY)
        call->bytes = call->bytes < 4 ? 4 : call->bytes / 4 * 4;
    if (raw->kind == MODULE || raw->kind == LIBRARY)
        call->choice = raw->b / SIZES % 3;
    if (raw->kind == POOL)
        call->choice = raw->b % 4;
    if (raw->kind == LIBRARY && call->bytes < MIB) /* small arrays count when they are measured */
        call->bytes = MIB;
    if (raw->kind == POOLED) {
        call->choice = raw->a % 3 == 0 ? NONE : cell_for(of, raw->a % 3 == 1 ? POOL_SHARE : POOL_TRIM, raw->a / 3);
        call->other = stream_for(of, call->device, raw->b);
        if (call->choice != NONE && of->things[call->choice].device != call->device)
            call->choice = NONE;
    }
    return true;
}

static bool choose_green(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = free_cell(of);
    call->device = raw->a % grants[of->grant].terms->device_count;
    return call->cell != NONE && of->contexts[call->device].attached > 0;
}

static bool choose_of_block(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = free_cell(of);
    call->other = cell_for(of, raw->kind, raw->a);
    if (call->cell == NONE || call->other == NONE)
        return false;
    call->device = of->things[call->other].device;
    return true;
}

static bool choose_tile(const struct raw *raw, const struct process *of, struct call *call)
{
    call->other = cell_for(of, TILE, raw->a);
    for (call->cell = 0; call->cell < CELLS && of->things[call->cell].kind != A_SPARSE; call->cell++)
        ;
    if (call->other == NONE || call->cell == CELLS || of->things[call->cell].device != of->things[call->other].device)
        return false;
    call->context = of->things[call->cell].context;
    call->device = of->things[call->cell].device;
    /* What a block is mapped over stays charged until the array is gone, and the card has it back before. */
    call->choice = books_tile(&of->things[call->cell], of->things[call->other].share);
    return of->things[call->cell].tiles[TILES - 1] == NULL;
}

/* The first descriptor from the `a`th on that a process of this grant can import, of a pool or of a block. */
static uint32_t file_for(const struct process *of, bool pool, uint32_t a)
{
    for (uint32_t i = 0; i < FILES; i++) {
        uint32_t file = (a + i) % FILES;
        const struct share *share = &books.shares[files[file].share];
        if (files[file].fd > 0 && files[file].grant == of->grant && share->pool == pool &&
            share->device < grants[of->grant].terms->device_count)
            return file;
    }
    return NONE;
}

static bool choose_import(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = free_cell(of);
    call->choice = file_for(of, raw->kind == POOL_IMPORT, raw->a);
    if (call->cell == NONE || call->choice == NONE)
        return false;
    call->other = files[call->choice].share;
    call->bytes = books.shares[call->other].bytes;
    call->device = books.shares[call->other].device;
    call->context = context_on(of, call->device);
    return raw->kind == IMPORT || call->context != NONE;
}

static bool may_be_opened(const struct share *share)
{
    return share->used && !share->pool && share->handle[0] != 0 && share->of_maker > 0;
}

static bool choose_open(const struct raw *raw, const struct process *of, struct call *call)
{
    const struct share *share = &books.shares[raw->a % SHARES];
    for (unsigned i = 0; i < SHARES && !may_be_opened(share); i++)
        share = &books.shares[(raw->a + i + 1) % SHARES];
    if (!may_be_opened(share) || share->maker == NONE)
        return false;
    const struct process *maker = &books.processes[share->maker];
    call->other = (uint32_t)(share - books.shares);
    call->cell = free_cell(of);
    call->device = share->device;
    call->context = context_on(of, share->device);
    memcpy(call->handle, share->handle, sizeof call->handle);
    return maker != of && maker->grant == of->grant && call->cell != NONE && call->context != NONE;
}

/* An address in an exported pool, for who imported that. */
static bool choose_pool_share(const struct raw *raw, const struct process *of, struct call *call)
{
    uint32_t found[CELLS], count = 0;
    for (uint32_t c = 0; c < CELLS; c++)
        if (of->things[c].kind == OF_POOL && of->things[c].pool != NONE && of->things[of->things[c].pool].share != NULL)
            found[count++] = c;
    if (count == 0)
        return false;
    call->cell = found[raw->a % count];
    call->device = of->things[call->cell].device;
    call->context = context_on(of, call->device);
    return call->context != NONE;
}

static bool choose_pool_open(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = free_cell(of);
    call->choice = cell_for(of, POOL_OPEN, raw->a);
    if (call->cell == NONE || call->choice == NONE)
        return false;
    const struct thing *pool = &of->things[call->choice];
    call->other = (uint32_t)(pool->share - books.shares);
    call->device = pool->device;
    call->context = context_on(of, pool->device);
    memcpy(call->handle, pool->share->handle, sizeof call->handle);
    return call->context != NONE;
}

static bool choose_limit(const struct raw *raw, const struct process *of, struct call *call)
{
    static const uint64_t values[] = {512, 1024, 2048, 4096, 8 * MIB, 9 * MIB, 20 * MIB, 48 * MIB};
    call->context = context_for(of, 0, raw->a);
    call->choice = raw->b % 3;
    call->bytes = values[(call->choice == 0 ? 0 : 4) + raw->b / 3 % 4];
    call->device = call->context == NONE ? 0 : of->contexts[call->context].device;
    return call->context != NONE;
}

static bool choose_of_cell(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = cell_for(of, raw->kind, raw->a);
    if (call->cell == NONE)
        return false;
    const struct thing *thing = &of->things[call->cell];
    call->device = thing->device;
    call->context = thing->context != NONE ? thing->context : context_on(of, thing->device);
    if (raw->kind == FREE_ASYNC || raw->kind == LAUNCH)
        call->other = stream_for(of, call->device, raw->b);
    bool needs_context = raw->kind != GRAPH_DESTROY && raw->kind != HANDLE_RELEASE && raw->kind != UNMAP &&
                         raw->kind != EXPORT && raw->kind != LIBRARY_UNLOAD;
    bool frees = raw->kind == FREE || raw->kind == FREE_ASYNC;
    if (raw->kind == POOL_DESTROY && thing->share != NULL && any_blocked(of))
        return false; /* what waits there is in the pool for longer than it has a name */
    bool unsure = (raw->kind == SHARE && thing->kind == PIECE && of->contexts[thing->context].lent) ||
                  (frees && books_may_stay(&books, raw->process, thing)) ||
                  (raw->kind == GREEN_DESTROY && books_may_move(&books, raw->process, thing->context));
    return (call->context != NONE || !needs_context) && !unsure;
}

static bool choose_library_use(const struct raw *raw, const struct process *of, struct call *call)
{
    call->cell = cell_for(of, raw->kind, raw->a);
    call->context = context_for(of, 0, raw->b);
    call->device = call->context == NONE ? 0 : of->contexts[call->context].device;
    return call->cell != NONE && call->context != NONE;
}

static bool choose_look(const struct raw *raw, const struct process *of, struct call *call)
{
    call->context = context_for(of, 0, raw->a);
    call->device = call->context == NONE ? 0 : of->contexts[call->context].device;
    return call->context != NONE && (raw->kind == LOOK || !any_blocked(of));
}

/* The call that these numbers stand for; false: there is none now. */
static bool choose(const struct raw *raw, struct call *call)
{
    const struct process *of = &books.processes[raw->process];
    *call = (struct call){.kind = raw->kind, .context = NONE, .cell = NONE, .other = NONE};
    call->thread = (raw->a + raw->b) / 4 % 2;
    switch (raw->kind) {
    case RETAIN:
    case RELEASE:
    case RESET:
    case CREATE:
    case DESTROY: return choose_context(raw, of, call);
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
    case MODULE: return choose_new(raw, of, call);
    case HANDLE_RETAIN:
    case MAP: return choose_of_block(raw, of, call);
    case TILE: return choose_tile(raw, of, call);
    case IMPORT:
    case POOL_IMPORT: return choose_import(raw, of, call);
    case POOL_SHARE: return choose_pool_share(raw, of, call);
    case POOL_OPEN: return choose_pool_open(raw, of, call);
    case OPEN: return choose_open(raw, of, call);
    case LIMIT: return choose_limit(raw, of, call);
    case GREEN: return choose_green(raw, of, call);
    case LIBRARY_USE: return choose_library_use(raw, of, call);
    case LOOK:
    case SYNCHRONIZE: return choose_look(raw, of, call);
    case RUN: return false;
    default: return choose_of_cell(raw, of, call);
    }
}

/* -------------------------------------------------------------------------------------------------------------- steps
 */

static void keep_file(int file, unsigned share, unsigned grant)
{
    for (unsigned i = 0; i < FILES; i++)
        if (files[i].fd == 0) {
            files[i].fd = file;
            files[i].share = share;
            files[i].grant = grant;
            return;
        }
    close(file);
    books.shares[share].files--;
}

static void print_call(uint32_t p, const struct call *call, int code, const struct seen *seen)
{
    note("process %u %s device %d context %d cell %d other %d choice %d bytes %llu -> %d; charged %.3f MiB, holds %.3f",
         p, names[call->kind], (int)call->device, (int)call->context, (int)call->cell, (int)call->other,
         (int)call->choice, (unsigned long long)call->bytes, code, mib(seen->charged[p][call->device]),
         mib(seen->figure[p][call->device]));
}

static void make_call(uint32_t p, const struct call *call)
{
    struct process *of = &books.processes[p];
    struct answer answer = {0};
    struct seen before = see();
    uint64_t used = used_by(&before, of->grant, call->device), limit = before.limit[of->grant][call->device];
    bool imports = call->kind == IMPORT || call->kind == POOL_IMPORT;
    int file = ask(p, call, imports ? files[call->choice].fd : -1, &answer);
    struct seen after = see();
    print_call(p, call, answer.code, &after);
    check_answer(&before, &after, p, call, answer.code);
    if (answer.code == OUT_OF_MEMORY && (call->kind == MODULE || call->kind == LIBRARY))
        of->code += 8 * answer.value; /* it may have been loaded before it was refused */
    if (answer.code == 0 || (answer.code == 1 && call->kind == LAUNCH))
        books_enter(&books, p, call, &answer, used < limit ? limit - used : 0);
    books_pools(&books, p, call, &answer);
    if (file >= 0)
        keep_file(file, (unsigned)(of->things[call->cell].share - books.shares), of->grant);
    check(&after, p, call, answer.code);
    if (call->kind == LOOK &&
        answer.value !=
            (limit > used_by(&after, of->grant, call->device) ? limit - used_by(&after, of->grant, call->device) : 0))
        fail("process %u, device %u: %.3f MiB are free, it says", p, call->device, mib(answer.value));
}

static void look(uint32_t p, uint32_t device)
{
    struct call call = {.kind = LOOK,
                        .device = device,
                        .context = context_on(&books.processes[p], device),
                        .cell = NONE,
                        .other = NONE};
    if (books.processes[p].lives && call.context != NONE)
        make_call(p, &call);
}

/* A refusal of what waits for a stream takes a second. */
static bool would_wait(uint32_t p, const struct call *call)
{
    const struct process *of = &books.processes[p];
    if (!any_blocked(of) || books_wanted(&books, p, call) == 0)
        return false;
    struct seen seen = see();
    if (used_by(&seen, of->grant, call->device) + books_wanted(&books, p, call) <= seen.limit[of->grant][call->device])
        return false;
    return patience == 0 || patience-- == 0;
}

static void after_an_end(uint32_t grant)
{
    struct call nothing = {.kind = RUN, .cell = NONE, .device = 0, .context = NONE};
    for (uint32_t p = 0; p < PROCESSES; p++)
        for (uint32_t d = 0; books.processes[p].lives && books.processes[p].grant == grant && d < DEVICES; d++)
            look(p, d);
    struct seen seen = see();
    check(&seen, PROCESSES, &nothing, 0);
}

static void kill_running(uint32_t p, uint32_t seed)
{
    struct call run = {.kind = RUN, .cell = NONE, .choice = seed};
    run.context = context_for(&books.processes[p], 0, seed);
    run.device = run.context == NONE ? 0 : books.processes[p].contexts[run.context].device;
    if (run.context == NONE)
        return;
    ask(p, &run, -1, NULL);
    usleep(seed % 1000);
    reap(p, SIGKILL);
}

static void kill_starting(uint32_t p, uint32_t seed)
{
    books.processes[p].pid = spawn(p, seed % GRANTS);
    usleep(seed % 4000);
    reap(p, SIGKILL);
}

static unsigned kills;

static void do_deed(const struct raw *raw)
{
    struct process *of = &books.processes[raw->process];
    uint32_t file = raw->a % FILES, grant = of->grant;
    bool starts = raw->kind == START || raw->kind == KILL_STARTING;
    if (raw->kind != CLOSE_FILE && of->lives == starts)
        return;
    if (raw->kind == CLOSE_FILE && files[file].fd == 0)
        return;
    note("process %u %s %u", raw->process, names[raw->kind], raw->a);
    switch (raw->kind) {
    case START: start(raw->process, raw->a % 4 == 3 ? 1 : 0); return;
    case END: reap(raw->process, 0); break;
    case KILL: reap(raw->process, SIGKILL); break;
    case KILL_RUNNING: kill_running(raw->process, raw->a * 37 + raw->b); break;
    case KILL_STARTING: kill_starting(raw->process, raw->a * 37 + raw->b); break;
    default:
        close(files[file].fd);
        files[file].fd = 0;
        books_close_file(&books, files[file].share);
    }
    kills += raw->kind != END && raw->kind != CLOSE_FILE;
    after_an_end(grant);
}

/* One step; whether there was something to do. */
static bool step(const struct raw *raw)
{
    struct call call;
    if (raw->kind >= CALL_KINDS) {
        do_deed(raw);
        return true;
    }
    if (!books.processes[raw->process].lives || !choose(raw, &call) || would_wait(raw->process, &call))
        return false;
    bool looks = measures(&call) || may_measure(&call); /* so that what it tells is known to the byte */
    if (looks)
        look(raw->process, call.device);
    make_call(raw->process, &call);
    if (looks)
        look(raw->process, call.device);
    return true;
}

/* All processes end: nothing is held, and nothing is charged. */
static void finish(bool failed)
{
    for (uint32_t p = 0; p < PROCESSES; p++)
        if (books.processes[p].lives)
            reap(p, failed || p % 2 == 0 ? SIGKILL : 0);
    for (unsigned i = 0; i < FILES; i++)
        if (files[i].fd > 0) {
            close(files[i].fd);
            files[i].fd = 0;
        }
    memset(books.shares, 0, sizeof books.shares);
    struct seen seen = see();
    memcpy(books.left, seen.left, sizeof books.left);
    memcpy(books.most_left, seen.left, sizeof books.most_left);
    for (uint32_t g = 0; g < GRANTS && !failed; g++) {
        start(0, g);
        for (uint32_t d = 0; d < grants[g].terms->device_count; d++) {
            step(&(struct raw){RETAIN, 0, d, 0});
            step(&(struct raw){ALLOCATE, 0, d, 0});
            look(0, d);
        }
        reap(0, 0);
    }
    seen = see();
    for (uint32_t d = 0; d < grants[0].terms->device_count && !failed; d++)
        if (seen.used[d] != 0 || seen.left[0][d] != 0 || seen.left[1][d] != 0)
            fail("device %u: %.3f MiB are held when all have ended, %.3f and %.3f charged", d, mib(seen.used[d]),
                 mib(seen.left[0][d]), mib(seen.left[1][d]));
    memset(books.left, 0, sizeof books.left);
    for (uint32_t g = 0; g < GRANTS && failed; g++)
        memset(grants[g].region, 0, sizeof(struct hetero_region));
}

/* ------------------------------------------------------------------------------------------------------------ programs
 */

static uint32_t rng(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static uint32_t random_kind(uint64_t *state, unsigned one_kill_in)
{
    static const uint32_t often[] = {ALLOCATE,   ALLOCATE, FREE,  FREE,        POOLED,     FREE_ASYNC,
                                     FREE_ASYNC, LAUNCH,   START, POOL_EXPORT, POOL_SHARE, POOL_OPEN};
    if (one_kill_in > 0 && rng(state) % one_kill_in == 0)
        return KILL + rng(state) % 3;
    if (rng(state) % 3 == 0)
        return often[rng(state) % (sizeof often / sizeof *often)];
    uint32_t kind = rng(state) % (DEED_KINDS - 1);
    bool ends = kind == END || kind == KILL || kind == KILL_RUNNING || kind == KILL_STARTING || kind == RESET;
    return ends && rng(state) % 8 != 0 ? (uint32_t)LOOK : kind;
}

/* Episodes of a thousand steps, each by its own seed. */
static int run_random(uint64_t seed, uint64_t calls, uint64_t kills_wanted)
{
    uint64_t made = 0, episode = seed, since = (uint64_t)time(NULL);
    unsigned one_kill_in = kills_wanted == 0 ? 0 : (unsigned)(calls / kills_wanted) + 1;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    for (; made < calls || kills < kills_wanted; episode++) {
        uint64_t state = episode;
        traced = 0;
        patience = episode % 256 == 0;
        for (unsigned steps = 0; steps < 1000 && failure[0] == '\0'; steps++) {
            struct raw raw = {random_kind(&state, one_kill_in), rng(&state) % PROCESSES, rng(&state) % 64,
                              rng(&state) % 64};
            made += step(&raw);
        }
        finish(failure[0] != '\0');
        if (failure[0] != '\0') {
            printf("seed %llu, after %llu calls:\n", (unsigned long long)episode, (unsigned long long)made);
            print_trace(getenv("MODEL_TRACE") ? TRACE : 40);
            return 1;
        }
    }
    printf("%llu calls, %u kills, %llu s; the next seed is %llu\n", (unsigned long long)made, kills,
           (unsigned long long)((uint64_t)time(NULL) - since), (unsigned long long)episode);
    return 0;
}

static uint32_t kind_named(const char *name)
{
    uint32_t kind = 0;
    while (kind < DEED_KINDS && strcmp(names[kind], name) != 0)
        kind++;
    return kind;
}

/* A step that there is not now starts the process, gives it a context, or allocates. */
static unsigned step_or_another(struct raw raw)
{
    if (!books.processes[raw.process].lives)
        raw.kind = START;
    if (step(&raw))
        return 1;
    raw.kind = context_for(&books.processes[raw.process], 0, 0) == NONE ? RETAIN : ALLOCATE;
    return step(&raw);
}

/* Lines of KIND PROCESS A B; a line of one dot ends all processes, and has an answer. */
static int run_script(void)
{
    char line[256], name[64];
    struct raw raw;
    unsigned made = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "%63s %u %u %u", name, &raw.process, &raw.a, &raw.b) == 4) {
            raw.kind = kind_named(name);
            if (failure[0] == '\0' && raw.kind < DEED_KINDS && raw.process < PROCESSES)
                made += step_or_another(raw);
            continue;
        }
        finish(failure[0] != '\0');
        if (failure[0] != '\0')
            print_trace(TRACE);
        printf("%s %u\n", failure[0] == '\0' ? "held" : "failed", made);
        fflush(stdout);
        failure[0] = '\0';
        traced = made = 0;
    }
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "work") == 0)
        return work(atoi(arguments[2]));
    if (count < 5)
        return 2;
    self = "/proc/self/exe";
    limiter = arguments[1];
    for (unsigned g = 0; g < GRANTS; g++) {
        grants[g].directory = arguments[2 + g];
        grants[g].terms = map_file(arguments[2 + g], "grant", sizeof(struct hetero_grant), PROT_READ);
        grants[g].region = map_file(arguments[2 + g], "usage", sizeof(struct hetero_region), PROT_READ | PROT_WRITE);
        snprintf(grants[g].assignment, sizeof grants[g].assignment, "HETERO_GRANT=%s/grant", arguments[2 + g]);
    }
    open_cards();
    books.context_bytes = strtoull(required(getenv("MODEL_CONTEXT"), "MODEL_CONTEXT"), NULL, 10);
    books.threads = strtoull(required(getenv("MODEL_THREADS"), "MODEL_THREADS"), NULL, 10);
    if (strcmp(arguments[4], "script") == 0)
        return run_script();
    return count == 8 ? run_random(strtoull(arguments[5], NULL, 10), strtoull(arguments[6], NULL, 10),
                                   strtoull(arguments[7], NULL, 10))
                      : 2;
}
