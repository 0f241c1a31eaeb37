/* Processes that do all of their work in exit handlers, several at once. */
#include "attack.h"

#define PROCESSES 4
#define KERNEL_MS 20
#define SECONDS   3

static int answers[2];

static void work(void)
{
    double share = share_in(SECONDS, KERNEL_MS);
    must(write(answers[1], &share, sizeof share) != sizeof share, "write");
    _exit(0);
}

static void exit_in_a_child(void)
{
    pid_t child = fork();
    must(child < 0, "fork");
    if (child != 0)
        return;
    begin();
    atexit(work); /* before the limiter's own, so after it, and before the driver's */
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
    usleep(200000); /* until the time slice is over */
    exit(0);
}

int main(void)
{
    double core = (double)attack_number("ATTACK_CORE"), all = 0, share;
    driver_by(dlsym);
    must(pipe(answers), "pipe");
    for (unsigned i = 0; i < PROCESSES; i++)
        exit_in_a_child();
    for (unsigned i = 0; i < PROCESSES; i++, all += share)
        must(read(answers[0], &share, sizeof share) != sizeof share, "a child");
    verdict(all <= core + 8, "%.0f %% of the device of %.0f by %u processes", all, core, PROCESSES);
}
