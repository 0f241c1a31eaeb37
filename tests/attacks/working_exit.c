/* Does all of its work in an exit handler. It runs beside an honest program, which is to have its share all the same.
 */
#include "attack.h"

static void work(void)
{
    for (;;)
        share_in(1, 100);
}

int main(void)
{
    driver_by(dlsym);
    begin();
    atexit(work); /* before the limiter's own, so after it, and before the driver's */
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
    usleep(200000); /* until the time slice is over */
    return 0;
}
