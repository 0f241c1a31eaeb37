/* Launches on two cards at once: next to nothing on the first, much on the second. */
#include "memory.h"

#define MS 5

int main(void)
{
    unsigned ns[] = {1000, MS * 1000000}, done = 0, core = (unsigned)attack_number("ATTACK_CORE");
    void *parameters[][1] = {{&ns[0]}, {&ns[1]}}, *module;
    CUcontext contexts[2];
    CUDA_LAUNCH_PARAMS launches[2];
    driver_by(dlsym);
    must(cu.init(0), "cuInit");
    for (int i = 0; i < 2; i++) {
        must(cu.retain((void **)&contexts[i], i), "cuDevicePrimaryCtxRetain");
        must(cu.set(contexts[i]), "cuCtxSetCurrent");
        must(cu.load(&module, attack_ptx), "cuModuleLoadData");
        launches[i] = (CUDA_LAUNCH_PARAMS){.gridDimX = 1,
                                           .gridDimY = 1,
                                           .gridDimZ = 1,
                                           .blockDimX = 1,
                                           .blockDimY = 1,
                                           .blockDimZ = 1,
                                           .kernelParams = parameters[i]};
        must(cu.function((void **)&launches[i].function, module, "spin"), "cuModuleGetFunction");
        must((int)CU(cuStreamCreate)(&launches[i].hStream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    uint64_t since = now_ns(), now = since;
    for (; now - since < 2000000000u; now = now_ns(), done++) {
        if (CU(cuLaunchCooperativeKernelMultiDevice)(launches, 2, 0) != CUDA_SUCCESS)
            verdict(true, "the driver has no such launch");
        must((int)CU(cuStreamSynchronize)(launches[1].hStream), "cuStreamSynchronize");
    }
    double share = 100e6 * MS * done / (double)(now - since);
    verdict(share <= core + 8, "%.0f %% of the second card of %u", share, core);
}
