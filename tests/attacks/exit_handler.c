/* C3: a program whose exit handler makes twenty small copies; they are to add less than 5 ms. */
#include "attack.h"

static uint64_t memory;

static void copies(void)
{
    uint64_t since = now_ns();
    for (int i = 0; i < 20; i++)
        must(cu.fill(memory, 1, 4096), "cuMemsetD8");
    double ms = (double)(now_ns() - since) / 1e6;
    verdict(ms < 15, "20 small fills in an exit handler take %.1f ms", ms); /* 5, with threefold slack */
}

int main(void)
{
    driver_by(dlsym);
    begin();
    atexit(copies); /* before the limiter's own, so after it, and before the driver's */
    must(cu.allocate(&memory, 2 * MIB), "cuMemAlloc");
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
    usleep(200000); /* until the time slice is over */
    return 0;
}
