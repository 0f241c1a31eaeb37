/* Launches while a child debugs the limiter's thread, which stands still behind an open gate. */
#include "attack.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

#define KERNEL_NS      2000000u
#define IN_A_ROW       4
#define SECONDS        3
#define FROZEN_SECONDS 2

/* All threads of this process but the one that asks. */
static unsigned other_threads(pid_t threads[64])
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    must(tasks == NULL, "/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL && count < 64;) {
        pid_t thread = atoi(task->d_name);
        if (thread > 0 && thread != gettid())
            threads[count++] = thread;
    }
    closedir(tasks);
    return count;
}

static unsigned launches_in(double seconds)
{
    unsigned done = 0;
    for (uint64_t since = now_ns(); (double)(now_ns() - since) < seconds * 1e9; done += IN_A_ROW) {
        for (unsigned i = 0; i < IN_A_ROW; i++)
            must(spin(KERNEL_NS), "cuLaunchKernel");
        must(cu.synchronize(), "cuCtxSynchronize");
    }
    return done;
}

int main(void)
{
    pid_t threads[64];
    int frozen[2];
    double core = (double)attack_number("ATTACK_CORE");
    driver_by(dlsym);
    begin();
    launches_in(0.5);
    unsigned count = other_threads(threads);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    must(pipe(frozen), "pipe");
    must(spin(KERNEL_NS), "cuLaunchKernel"); /* the gate is open */
    pid_t child = fork();
    if (child == 0) {
        for (unsigned i = 0; i < count; i++)
            if (ptrace(PTRACE_SEIZE, threads[i], 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, threads[i], 0, 0) != 0)
                _exit(1);
        must(write(frozen[1], "", 1) != 1, "write");
        sleep(FROZEN_SECONDS);
        _exit(0);
    }
    char byte;
    must(child < 0 || close(frozen[1]) != 0 || read(frozen[0], &byte, 1) != 1, "a child that debugs");
    uint64_t since = now_ns();
    double done = launches_in(SECONDS);
    double share = 100 * done * KERNEL_NS / (double)(now_ns() - since);
    waitpid(child, NULL, 0);
    verdict(share <= core + 8, "%.0f %% of the device of %.0f, its thread frozen for %u of %u s", share, core,
            FROZEN_SECONDS, SECONDS);
}
