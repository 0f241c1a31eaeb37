/* B: more streams than the limiter tracked: short kernels in 300, then kernels of 1 ms in as many as are left. Each
 * fills the card, so that one runs at a time on whatever card. */
#include "attack.h"

enum { STREAMS = 1000, TRACKED = 300, ROUNDS = 3 };

int main(void)
{
    static void *streams[STREAMS];
    int (*create)(void **, unsigned);
    driver_by(dlsym);
    begin();
    *(void **)&create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamCreate");
    for (unsigned i = 0; i < STREAMS; i++)
        must(create(&streams[i], 1), "cuStreamCreate");
    uint64_t since = now_ns();
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < STREAMS; i++)
            must(fill_the_card(streams[i], i < TRACKED ? 1000 : 1000000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double work_ns = ROUNDS * (TRACKED * 1e3 + (STREAMS - TRACKED) * 1e6);
    double share = 100 * work_ns / (double)(now_ns() - since);
    verdict(share <= core + 3, "%.1f %% of the device of %u", share, core);
}
