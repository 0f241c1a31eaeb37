/*
 * Runs kube-scheduler while the process beside it that holds the Lease says so.
 *
 *     hetero-supervisor SOCKET PROGRAM [ARGUMENT]...
 *
 * The other process listens on SOCKET and says '1' (lead) or '0' (stand by) several times a second;
 * each word is answered by itself. PROGRAM runs after a '1', and is killed by a '0', by silence and
 * by the end of the connection. When PROGRAM ends by itself, the connection is closed: the other
 * side gives the Lease up, and somebody else leads.
 *
 * It is one static file because the image of kube-scheduler holds no shell and no C library: an init
 * container copies it into a volume of the pod.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
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

static void start(char **argv)
{
    pid_t parent = getpid();
    program = fork();
    if (program == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1); /* the parent ended before it would have been noticed */
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
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (made >= 0 && connect(made, (struct sockaddr *)&address, sizeof address) == 0)
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

/* Do what is said until the other side is gone or the program ends by itself. */
static void obey(int connection, char **argv)
{
    while (!stopping) {
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
    if (argc < 3 || strlen(argv[1]) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        fprintf(stderr, "usage: %s SOCKET PROGRAM [ARGUMENT]...\n", argv[0]);
        return 2;
    }
    catch_signals();
    while (!stopping) {
        int connection = join(argv[1]), ran = 0;
        if (connection >= 0) {
            obey(connection, argv + 2);
            ran = 1;
            end();
            close(connection);
        }
        wait_ms(ran ? PAUSE_MS : RETRY_MS);
    }
    return 0;
}
