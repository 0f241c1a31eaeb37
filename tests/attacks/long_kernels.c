/* B: kernels of 400 ms, from the first launch to the start of the last. */
#include "attack.h"

enum { KERNELS = 6, LENGTH_MS = 400 };

int main(void)
{
    driver_by(dlsym);
    begin();
    uint64_t since = 0;
    for (unsigned i = 0; i < KERNELS; i++) {
        must(spin(LENGTH_MS * 1000000u), "cuLaunchKernel");
        since = since == 0 ? now_ns() : since; /* what was let in has begun */
        if (i + 1 < KERNELS)
            must(cu.synchronize(), "cuCtxSynchronize");
    }
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double share = 100e6 * LENGTH_MS * (KERNELS - 1) / (double)(now_ns() - since);
    verdict(share <= core + 3, "%.1f %% of the device of %u", share, core);
}
