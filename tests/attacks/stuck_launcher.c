/* B: a launcher that is kept in a signal handler while it waits at the gate. It runs beside an honest program, which is
 * to have its share all the same. */
#include "attack.h"

static void stay(int number)
{
    (void)number;
    for (;;)
        pause();
}

static void *launch(void *unused)
{
    must(cu.set(cu.context), "cuCtxSetCurrent");
    for (;;)
        must(spin(5000000), "cuLaunchKernel");
    return unused;
}

int main(void)
{
    pthread_t launcher;
    driver_by(dlsym);
    begin();
    signal(SIGUSR1, stay);
    must(pthread_create(&launcher, NULL, launch, NULL), "pthread_create");
    usleep(300000); /* by now it waits at the gate, most of the time */
    pthread_kill(launcher, SIGUSR1);
    for (;;)
        pause();
}
