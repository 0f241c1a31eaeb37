/* Contexts that end, or seem to, while their work is in flight. */
#include "attack.h"

#define KERNEL_MS 400
#define SECONDS   8

static int (*release)(int), (*create)(void **, unsigned, int), (*destroy)(void *);

/* The primary context is given up while another has it, and its work goes on. */
static void release_one(void)
{
    void *again;
    must(spin(KERNEL_MS * 1000000), "cuLaunchKernel");
    must(cu.retain(&again, 0), "cuDevicePrimaryCtxRetain");
    must(release(0), "cuDevicePrimaryCtxRelease");
    must(cu.synchronize(), "cuCtxSynchronize");
}

/* A context is destroyed with a kernel in it, for which the driver waits. */
static void destroy_one(void)
{
    void *context, *module, *primary = cu.kernel;
    must(create(&context, 0, 0), "cuCtxCreate");
    must(cu.load(&module, attack_ptx), "cuModuleLoadData");
    must(cu.function(&cu.kernel, module, "spin"), "cuModuleGetFunction");
    must(spin(KERNEL_MS * 1000000), "cuLaunchKernel");
    must(destroy(context), "cuCtxDestroy");
    cu.kernel = primary;
    must(cu.set(cu.context), "cuCtxSetCurrent");
}

static double share_of(void (*one)(void))
{
    uint64_t since = now_ns(), now = since;
    unsigned done = 0;
    for (; (double)(now - since) < SECONDS * 1e9; now = now_ns(), done++)
        one();
    return 100e6 * KERNEL_MS * done / (double)(now - since);
}

int main(void)
{
    double core = (double)attack_number("ATTACK_CORE");
    driver_by(dlsym);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&release = dlsym(driver, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&create = dlsym(driver, "cuCtxCreate_v2");
    *(void **)&destroy = dlsym(driver, "cuCtxDestroy_v2");
    begin();
    double released = share_of(release_one), destroyed = share_of(destroy_one);
    verdict(released <= core + 8 && destroyed <= core + 8, "%.0f %% released, %.0f %% destroyed, of %.0f", released,
            destroyed, core);
}
