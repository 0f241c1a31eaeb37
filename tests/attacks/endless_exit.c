/* C3: a program that does all of its work in an exit handler. */
#include "attack.h"

static void work(void)
{
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double share = share_in(3, 100);
    verdict(share <= core + 8, "%.0f %% of the device of %u", share, core);
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
