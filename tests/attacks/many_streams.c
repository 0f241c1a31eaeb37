/* B: more streams than the limiter tracked: short kernels in 300, then kernels of 1 ms in as many as are left. Each
 * fills the card, so that one runs at a time on whatever card. */
#include "attack.h"

enum { STREAMS = 1000, TRACKED = 300, ROUNDS = 3 };

static unsigned blocks; /* of 1024 threads, as many as the card holds */

static void fill_the_card(void)
{
    enum { PROCESSORS = 16, THREADS_OF_ONE = 39 }; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and so on of cuda.h */
    int (*attribute)(int *, int, int), processors, threads;
    *(void **)&attribute = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetAttribute");
    must(attribute(&processors, PROCESSORS, 0), "cuDeviceGetAttribute");
    must(attribute(&threads, THREADS_OF_ONE, 0), "cuDeviceGetAttribute");
    blocks = (unsigned)(processors * (threads / 1024));
}

static void launch(void *stream, unsigned ns)
{
    void *parameters[] = {&ns};
    must(cu.launch(cu.kernel, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
}

int main(void)
{
    static void *streams[STREAMS];
    int (*create)(void **, unsigned);
    driver_by(dlsym);
    begin();
    fill_the_card();
    *(void **)&create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamCreate");
    for (unsigned i = 0; i < STREAMS; i++)
        must(create(&streams[i], 1), "cuStreamCreate");
    uint64_t since = now_ns();
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < STREAMS; i++)
            launch(streams[i], i < TRACKED ? 1000 : 1000000);
    must(cu.synchronize(), "cuCtxSynchronize");
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double work_ns = ROUNDS * (TRACKED * 1e3 + (STREAMS - TRACKED) * 1e6);
    double share = 100 * work_ns / (double)(now_ns() - since);
    verdict(share <= core + 3, "%.1f %% of the device of %u", share, core);
}
