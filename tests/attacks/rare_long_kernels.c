/* B: many small kernels and now and then a long one, which is waited for, so that what is known of a launch is of the
 * small ones. */
#include "attack.h"

enum { SMALL_NS = 5000, SECONDS = 4 };

/* The percent of the device that `small` of them and one of `long_ns` get, one after the other. */
static double got(unsigned small, unsigned long_ns)
{
    uint64_t since = now_ns(), counted = 0, used = 0;
    while (now_ns() - since < (1 + SECONDS) * 1000000000ull) {
        if (counted == 0 && now_ns() - since > 1000000000u)
            counted = now_ns();
        for (unsigned i = 0; i < small; i++)
            must(spin(SMALL_NS), "cuLaunchKernel");
        must(spin(long_ns), "cuLaunchKernel");
        must(cu.synchronize(), "cuCtxSynchronize");
        used += counted != 0 ? small * SMALL_NS + long_ns : 0;
    }
    return 100. * (double)used / (double)(now_ns() - counted);
}

int main(void)
{
    driver_by(dlsym);
    begin();
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double share = got(300, 20000000), rarer = got(1000, 5000000);
    share = rarer > share ? rarer : share;
    verdict(share <= core + 5, "%.1f %% of the device of %u", share, core);
}
