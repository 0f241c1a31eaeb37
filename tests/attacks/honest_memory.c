/* Honest programs that look like the attacks on memory: each gets what its limit allows. */
#include "memory.h"

#define ROUNDS 40

/* A pool used well: more in all than the limit, never more at once. */
PART(pool, "a pool")
{
    CUmemoryPool of_card;
    CUdeviceptr pointer, other;
    uint64_t threshold = UINT64_MAX;
    open_card();
    must((int)CU(cuDeviceGetDefaultMemPool)(&of_card, 0), "cuDeviceGetDefaultMemPool");
    must((int)CU(cuMemPoolSetAttribute)(of_card, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "threshold");
    for (unsigned i = 0; i < ROUNDS; i++) {
        must((int)CU(cuMemAllocAsync)(&pointer, 24 * MIB, NULL), "cuMemAllocAsync");
        must((int)CU(cuMemAllocAsync)(&other, (i % 8 + 1) * MIB, NULL), "cuMemAllocAsync");
        must(spin(1000), "cuLaunchKernel");
        must((int)CU(cuMemFreeAsync)(pointer, NULL), "cuMemFreeAsync");
        must((int)CU(cuMemFreeAsync)(other, NULL), "cuMemFreeAsync");
    }
    must(cu.synchronize(), "cuCtxSynchronize");
    must((int)CU(cuMemPoolTrimTo)(of_card, 0), "cuMemPoolTrimTo");
    must(cu.allocate((uint64_t *)&pointer, 62 * MIB), "cuMemAlloc after the pool");
}

/* Two processes of the grant share what one of them has; the other has as much again of its own. */
PART(shared, "memory of two processes")
{
    int to_child[2], to_parent[2];
    CUipcMemHandle handle;
    CUdeviceptr pointer, own;
    char done = 0;
    must(pipe(to_child) || pipe(to_parent), "pipe");
    pid_t child = fork();
    if (child == 0) {
        open_card();
        for (unsigned i = 0; i < ROUNDS; i++) {
            must(read(to_child[0], &handle, sizeof handle) != sizeof handle, "read");
            must((int)CU(cuIpcOpenMemHandle_v2)(&pointer, handle, 1), "cuIpcOpenMemHandle");
            must(cu.allocate((uint64_t *)&own, 30 * MIB), "cuMemAlloc of the child");
            must((int)CU(cuIpcCloseMemHandle)(pointer), "cuIpcCloseMemHandle");
            must(cu.release(own), "cuMemFree");
            must(write(to_parent[1], &done, 1) != 1, "write");
        }
        _exit(0);
    }
    open_card();
    for (unsigned i = 0; i < ROUNDS; i++) {
        must(cu.allocate((uint64_t *)&pointer, 30 * MIB), "cuMemAlloc of the parent");
        must((int)CU(cuIpcGetMemHandle)(&handle, pointer), "cuIpcGetMemHandle");
        must(write(to_child[1], &handle, sizeof handle) != sizeof handle, "write");
        must(read(to_parent[0], &done, 1) != 1, "the child");
        must(cu.release(pointer), "cuMemFree");
    }
    waitpid(child, NULL, 0);
}

/* Blocks exported, imported, and let go, again and again. */
PART(exports, "exports")
{
    CUmemGenericAllocationHandle handle, again;
    open_card();
    for (unsigned i = 0; i < ROUNDS; i++) {
        int file = exported(16 * MIB, &handle);
        must(file < 0, "cuMemCreate");
        must((int)import(file, &again), "cuMemImportFromShareableHandle");
        close(file);
        must((int)CU(cuMemRelease)(again), "cuMemRelease");
        must((int)CU(cuMemRelease)(handle), "cuMemRelease");
    }
}

/* Sparse arrays of more than the limit take nothing. */
PART(sparse, "sparse arrays")
{
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 16 * 1024,
                                     .Height = 1024,
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 4,
                                     .Flags = CUDA_ARRAY3D_SPARSE};
    uint64_t pointer;
    open_card();
    for (unsigned i = 0; i < 4; i++)
        must((int)CU(cuArray3DCreate_v2)(&array, &shape), "cuArray3DCreate");
    must(cu.allocate(&pointer, 62 * MIB), "cuMemAlloc");
}

/* Modules with an array of 4 KiB each; and what is left of the limit. */
PART(modules, "modules")
{
    static const char small[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .b8 a[4096];\n.visible .entry touch() { ret; }\n";
    void *module, *kernel;
    uint64_t pointer;
    open_card();
    for (unsigned i = 0; i < ROUNDS; i++) {
        must(cu.load(&module, small), "cuModuleLoadData");
        must(cu.function(&kernel, module, "touch"), "cuModuleGetFunction");
        must(cu.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    }
    must(cu.allocate(&pointer, 60 * MIB), "cuMemAlloc");
}

/* Kernels of which most are never launched, as a framework has them that loads all at once. */
PART(kernels, "kernels")
{
    static const char large[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .entry large() { .local .b8 a[131072]; ret; }\n"
                                ".visible .entry small() { ret; }\n";
    void *module, *kernel;
    uint64_t pointer;
    open_card();
    must(cu.load(&module, large), "cuModuleLoadData");
    must(cu.function(&kernel, module, "large"), "cuModuleGetFunction");
    must(cu.function(&kernel, module, "small"), "cuModuleGetFunction");
    must(cu.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    must(cu.allocate(&pointer, 62 * MIB), "cuMemAlloc");
}

/* A graph that allocates and frees, launched again and again. */
PART(graphs, "graphs")
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must((int)CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    must((int)CU(cuMemAllocAsync)(&pointer, 24 * MIB, stream), "cuMemAllocAsync");
    must((int)CU(cuMemFreeAsync)(pointer, stream), "cuMemFreeAsync");
    must((int)CU(cuStreamEndCapture)(stream, &graph), "cuStreamEndCapture");
    must((int)CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), "cuGraphInstantiate");
    for (unsigned i = 0; i < ROUNDS; i++)
        must((int)CU(cuGraphLaunch)(exec, stream), "cuGraphLaunch");
    must((int)CU(cuStreamSynchronize)(stream), "cuStreamSynchronize");
    must(cu.allocate((uint64_t *)&pointer, 30 * MIB), "cuMemAlloc");
}

/* A grant's last byte can be had. */
PART(all_of_it, "the limit")
{
    uint64_t pointer;
    open_card();
    must(cu.allocate(&pointer, attack_number("ATTACK_MEMORY")), "cuMemAlloc of the limit");
}

int main(void)
{
    run_parts();
}
