/* B: more streams than the limiter tracked, a kernel of 1 ms in each. */
#include "attack.h"

enum { STREAMS = 1000, KERNELS = 3 * STREAMS };

int main(void)
{
    static void *streams[STREAMS];
    int (*create)(void **, unsigned);
    unsigned ns = 1000000;
    void *parameters[] = {&ns};
    driver_by(dlsym);
    begin();
    *(void **)&create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamCreate");
    for (unsigned i = 0; i < STREAMS; i++)
        must(create(&streams[i], 1), "cuStreamCreate");
    uint64_t since = now_ns();
    for (unsigned i = 0; i < KERNELS; i++)
        must(cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, streams[i % STREAMS], parameters, NULL), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double share = 100.0 * KERNELS * 1e6 / (double)(now_ns() - since);
    verdict(share <= core + 3, "%.1f %% of the device of %u", share, core);
}
