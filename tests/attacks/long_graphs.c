/* B: graphs of 4000 kernels of 100 us, launched as one. */
#include "attack.h"

enum { NODES = 4000, NODE_NS = 100000, GRAPHS = 5 };

int main(void)
{
    int (*create)(void **, unsigned), (*begin_capture)(void *, int), (*end_capture)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, void *);
    void *stream, *graph, *exec, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    unsigned ns = NODE_NS;
    void *parameters[] = {&ns};
    driver_by(dlsym);
    begin();
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    *(void **)&begin_capture = dlsym(driver, "cuStreamBeginCapture_v2");
    *(void **)&end_capture = dlsym(driver, "cuStreamEndCapture");
    *(void **)&instantiate = dlsym(driver, "cuGraphInstantiateWithFlags");
    *(void **)&launch = dlsym(driver, "cuGraphLaunch");
    must(create(&stream, 1), "cuStreamCreate");
    must(begin_capture(stream, 2), "cuStreamBeginCapture");
    for (unsigned i = 0; i < NODES; i++)
        must(cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
    must(end_capture(stream, &graph), "cuStreamEndCapture");
    must(instantiate(&exec, graph, 0), "cuGraphInstantiate");
    uint64_t since = 0;
    for (unsigned i = 0; i < GRAPHS; i++) {
        must(launch(exec, stream), "cuGraphLaunch");
        since = since == 0 ? now_ns() : since;
        if (i + 1 < GRAPHS)
            must(cu.synchronize(), "cuCtxSynchronize");
    }
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    double share = 100.0 * NODE_NS * NODES * (GRAPHS - 1) / (double)(now_ns() - since);
    verdict(share <= core + 3, "%.1f %% of the device of %u", share, core);
}
