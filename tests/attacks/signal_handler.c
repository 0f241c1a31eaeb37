/* C2: a signal handler that launches while the limiter's own code is interrupted, in the middle of a launch, too. Where
 * the driver's is, the driver may hang, with or without a limiter. */
#include "attack.h"

#include <ucontext.h>

static uintptr_t first, end;
static volatile unsigned handled;
static volatile uint64_t longest_ns;
static pthread_t launcher;
static volatile bool over;

static void find_limiter(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        char rights[8];
        if (strstr(line, "libhetero-") != NULL && sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 &&
            rights[2] == 'x')
            first = from, end = to;
    }
    if (maps != NULL)
        fclose(maps);
}

static void launch(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
#if defined(__x86_64__)
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t at = ((ucontext_t *)context)->uc_mcontext.pc;
#endif
    if (at < first || at >= end)
        return;
    uint64_t since = now_ns();
    spin(1000);
    uint64_t took_ns = now_ns() - since;
    longest_ns = took_ns > longest_ns ? took_ns : longest_ns;
    handled++;
}

static void hangs(int number)
{
    (void)number;
    verdict(false, "a launch in a signal handler hangs for ever, after %u that did not", handled);
}

static void *storm(void *unused)
{
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
    while (!over)
        pthread_kill(launcher, SIGUSR1);
    return unused;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = launch, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t alarm_only;
    pthread_t thread;
    driver_by(dlsym);
    begin();
    find_limiter();
    must(first == 0, "no limiter");
    signal(SIGALRM, hangs);
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    launcher = pthread_self();
    must(pthread_create(&thread, NULL, storm, NULL), "pthread_create");
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    alarm(50);
    for (uint64_t since = now_ns(); handled == 0 || (handled < 1000 && now_ns() - since < 6000000000u);)
        must(spin(1000), "cuLaunchKernel");
    over = true;
    pthread_join(thread, NULL);
    verdict(longest_ns < 2000000000u, "%u launches in signal handlers return, after %u ms at most", handled,
            (unsigned)(longest_ns / 1000000));
}
