/*
 * Runs kube-scheduler while the process beside it that holds the Lease says so.
 *
 *     hetero-supervisor [--root-of=ARGUMENT] SOCKET PROGRAM [ARGUMENT]...
 *
 * The other process listens on SOCKET and says '1' (lead) or '0' (stand by) several times a second;
 * each word is answered by itself. PROGRAM runs after a '1', and is killed by a '0', by silence and
 * by the end of the connection. When PROGRAM ends by itself, the connection is closed: the other
 * side gives the Lease up, and somebody else leads. A SOCKET that begins with '@' is abstract: it is
 * in no file system, and its network namespace is the pod's.
 *
 * With --root-of PROGRAM sees the files of another container: those of the process whose last
 * argument that is. So kube-scheduler's image, which holds no shell and no C library, needs nothing
 * of ours. Without that process the connection is closed. The process gets no signal but SIGKILL,
 * as this one ends: one that waits for its input would have a pod wait out its grace period.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LEAD = '1', STAND_BY = '0', GONE = 0 };

/* Milliseconds without a word until the other side counts as gone: fewer than a Lease lasts, and
   many times the quarter of a second between two words. */
static const int SILENT_MS = 2000;
/* Milliseconds between two attempts to reach the other side, which may be starting. */
static const int RETRY_MS = 200;
/* Milliseconds before the other side is told of after a program that ended by itself. */
static const int PAUSE_MS = 1000;

static volatile sig_atomic_t stopping; /* set by a signal, read by the loops */
static pid_t program;                  /* of this thread alone; 0: none runs */
static const char *root_argument;      /* of --root-of, const after main began; NULL: our own root */
static pid_t root_process;             /* of this thread alone; 0: not found */

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

static void wait_ms(int milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL); /* a signal ends it early, which is wanted */
}

/* Whether the last argument of a process is that of --root-of. */
static int has_argument(const char *pid)
{
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, line, sizeof line);
    ssize_t wanted = (ssize_t)strlen(root_argument) + 1;
    if (file >= 0)
        close(file);
    return length > wanted && !line[length - wanted - 1] &&
           !memcmp(line + length - wanted, root_argument, (size_t)wanted);
}

/* Whether there is a root directory for the program. */
static int has_root(void)
{
    char pid[24];
    snprintf(pid, sizeof pid, "%d", root_process);
    if (!root_argument || (root_process && has_argument(pid)))
        return 1;
    DIR *processes = opendir("/proc");
    root_process = 0;
    for (struct dirent *entry; processes && !root_process && (entry = readdir(processes));)
        if (has_argument(entry->d_name))
            root_process = (pid_t)strtol(entry->d_name, NULL, 10);
    if (processes)
        closedir(processes);
    return root_process != 0;
}

/* Return whether the root directory was entered, if there is one to enter. */
static int enter_root(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root", root_process);
    if (!root_argument || (chroot(path) == 0 && chdir("/") == 0))
        return 1;
    fprintf(stderr,
            "supervisor: %s: %s (the other container needs the same user, and this one "
            "CAP_SYS_CHROOT)\n",
            path, strerror(errno));
    return 0;
}

static void start(char **argv)
{
    pid_t parent = getpid();
    program = fork();
    if (program == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1); /* the parent ended before it would have been noticed */
        if (!enter_root())
            _exit(126);
        execvp(argv[0], argv);
        fprintf(stderr, "supervisor: %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    if (program < 0) {
        perror("supervisor: fork");
        program = 0;
        return;
    }
    fprintf(stderr, "supervisor: leading: %s started\n", argv[0]);
}

/* It holds nothing that another would wait for: no Lease, and each binding is one request. */
static void end(void)
{
    if (!program)
        return;
    kill(program, SIGKILL);
    while (waitpid(program, NULL, 0) < 0 && errno == EINTR)
        ;
    program = 0;
    fprintf(stderr, "supervisor: standing by: the program was ended\n");
}

/* Whether the program ended by itself. */
static int ended(void)
{
    int status;
    if (!program || waitpid(program, &status, WNOHANG) != program)
        return 0;
    program = 0;
    fprintf(stderr, "supervisor: the program ended by itself, status %d\n", status);
    return 1;
}

/* Return a connection, -1 if nobody listens. */
static int join(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (*path == '@')
        address.sun_path[0] = '\0';
    if (made >= 0 && connect(made, (struct sockaddr *)&address, length) == 0)
        return made;
    if (made >= 0)
        close(made);
    return -1;
}

/* Return the newest word, GONE when there is none for too long. */
static int hear(int connection)
{
    struct pollfd wanted = {.fd = connection, .events = POLLIN};
    char words[64];
    int found = poll(&wanted, 1, SILENT_MS);
    ssize_t length = found > 0 ? read(connection, words, sizeof words) : 0;
    return length > 0 ? words[length - 1] : GONE;
}

/* Do what is said until the other side is gone, the program ends by itself or its root is another. */
static void obey(int connection, char **argv)
{
    pid_t root = root_process;
    while (!stopping && has_root() && root == root_process) {
        char word = (char)hear(connection);
        if (word == GONE)
            return;
        if (word == LEAD && !program)
            start(argv);
        if (word == STAND_BY)
            end();
        if (ended())
            return;
        if (write(connection, &word, 1) != 1)
            return;
    }
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = stop}; /* no SA_RESTART: waits are to end */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
    const char option[] = "--root-of=", *name = argv[0];
    if (argc > 1 && !strncmp(argv[1], option, sizeof option - 1)) {
        root_argument = argv[1] + sizeof option - 1;
        argv++, argc--;
    }
    if (argc < 3 || strlen(argv[1]) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        fprintf(stderr, "usage: %s [--root-of=ARGUMENT] SOCKET PROGRAM [ARGUMENT]...\n", name);
        return 2;
    }
    catch_signals();
    while (!stopping) {
        int connection = has_root() ? join(argv[1]) : -1, ran = 0;
        if (connection >= 0) {
            obey(connection, argv + 2);
            ran = 1;
            end();
            close(connection);
        }
        wait_ms(ran ? PAUSE_MS : RETRY_MS);
    }
    if (root_argument && has_root())
        kill(root_process, SIGKILL);
    return 0;
}
