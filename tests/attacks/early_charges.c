/* What is charged before the card has it, or after: beside streams, whose memory no call tells, so that it is charged
 * by the driver's figure for the process. Where that seems to have become less, there is room that is none.
 */
#include "memory.h"

#define HALF    (30 * MIB)
#define OF_POOL (24 * MIB) /* for which it reserves 32 */
#define RACE_NS 1000000000ull

/* Have the driver's figure compared with what is charged. */
static void look(void)
{
    CUstream stream;
    if (CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
        CU(cuStreamDestroy_v2)(stream);
}

/* Streams that leave half of the limit. */
static void open_with_streams(void)
{
    CUstream stream;
    size_t left, total;
    open_card();
    for (unsigned i = 0; i < 1000 && cu.info(&left, &total) == CUDA_SUCCESS && left > HALF + 4 * MIB; i++)
        if (CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return;
}

/* Take half of the limit by pieces, now that it is looked at. */
static void take_half(void)
{
    uint64_t pointer;
    look();
    for (unsigned i = 0; i < HALF / (2 * MIB) && cu.allocate(&pointer, 2 * MIB) == CUDA_SUCCESS; i++)
        ;
}

/* ---------------------------------------------------------------------------------------------------- other threads */

static atomic_uint holding;
static atomic_bool over;

/* Hold a half, again and again, until two have one at once. */
static void *hold_half(void *context)
{
    uint64_t pointer;
    must(cu.set(context), "cuCtxSetCurrent");
    while (!over) {
        if (cu.allocate(&pointer, HALF) != CUDA_SUCCESS)
            continue;
        over = atomic_fetch_add(&holding, 1) > 0 || over;
        usleep(100);
        if (over)
            break;
        atomic_fetch_sub(&holding, 1);
        cu.release(pointer);
    }
    return NULL;
}

PART(halves_in_flight, "halves in flight")
{
    pthread_t threads[2];
    open_with_streams();
    for (int i = 0; i < 2; i++)
        must(pthread_create(&threads[i], NULL, hold_half, cu.context), "pthread_create");
    for (uint64_t since = now_ns(); now_ns() - since < RACE_NS && !over;)
        look();
    over = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* ----------------------------------------------------------------------------------------------------- one thread */

/* Instantiated, it is charged for its first launch. */
PART(of_graphs, "of graphs")
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytesize = HALF};
    open_with_streams();
    must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
    must((int)CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
    bool made = CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS;
    take_half();
    if (made)
        CU(cuGraphLaunch)(exec, NULL);
    cu.synchronize();
}

/* Freed in a stream's order and waited for, it is charged until somebody asks for room. */
PART(of_ordered_frees, "of ordered frees")
{
    CUdeviceptr pointer;
    open_with_streams();
    if (cu.allocate((uint64_t *)&pointer, HALF) == CUDA_SUCCESS)
        CU(cuMemFreeAsync)(pointer, NULL);
    cu.synchronize();
    take_half();
    take_half();
}

/* A pool gives its memory back by itself, or when it is trimmed: it is charged until it is asked. What others may have
 * of it is charged until it is destroyed. */
static void of_a_pool(bool shared)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handleTypes = shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr pointer;
    int file;
    open_with_streams();
    must((int)CU(cuMemPoolCreate)(&pool, &properties), "cuMemPoolCreate");
    if (shared)
        must((int)CU(cuMemPoolExportToShareableHandle)(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
             "cuMemPoolExportToShareableHandle");
    if (CU(cuMemAllocFromPoolAsync)(&pointer, OF_POOL, pool, NULL) == CUDA_SUCCESS)
        CU(cuMemFreeAsync)(pointer, NULL);
    cu.synchronize();
    CU(cuMemPoolTrimTo)(pool, 0);
    take_half();
    CU(cuMemAllocFromPoolAsync)(&pointer, OF_POOL, pool, NULL);
    cu.synchronize();
}

PART(of_pools, "of pools")
{
    of_a_pool(false);
}

PART(of_shared_pools, "of pools that others may have")
{
    of_a_pool(true);
}

/* Small arrays are charged by the most that they were together. */
PART(of_small_arrays, "of small arrays")
{
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 128, .Height = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray arrays[HALF / (256 << 10)];
    unsigned count = 0;
    open_with_streams();
    while (count < sizeof arrays / sizeof *arrays && CU(cuArrayCreate_v2)(&arrays[count], &shape) == CUDA_SUCCESS)
        count++;
    for (unsigned i = 1; i < count; i++)
        CU(cuArrayDestroy)(arrays[i]);
    take_half();
    for (unsigned i = 1; i < count; i++)
        CU(cuArrayCreate_v2)(&arrays[i], &shape);
}

/* A heap is taken by the first kernel that uses one, stacks for such kernels when their image is loaded. */
PART(of_heaps, "of heaps")
{
    static const char uses[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                               ".extern .func (.param .b64 r) malloc (.param .b64 n);\n"
                               ".visible .entry takes()\n{\n    .reg .b64 %n;\n    mov.u64 %n, 16;\n    {\n"
                               "    .param .b64 in;\n    .param .b64 out;\n    st.param.b64 [in], %n;\n"
                               "    call (out), malloc, (in);\n    }\n    ret;\n}\n";
    void *module, *kernel;
    open_with_streams();
    CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, HALF);
    take_half();
    if (cu.load(&module, uses) == CUDA_SUCCESS && cu.function(&kernel, module, "takes") == CUDA_SUCCESS)
        cu.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    cu.synchronize();
}

/* A library's arrays are there when something of it is used. */
PART(of_libraries, "of libraries")
{
    static const char image[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .align 8 .b8 array[31457280];\n.visible .entry empty()\n{\nret;\n}\n";
    CUlibrary library;
    CUdeviceptr pointer;
    size_t bytes;
    open_with_streams();
    bool loaded = CU(cuLibraryLoadData)(&library, image, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS;
    take_half();
    if (loaded)
        CU(cuLibraryGetGlobal)(&pointer, &bytes, library, "array");
}

/* The local memory of a kernel in a graph is there with the first launch. */
PART(of_threads, "of threads")
{
    static const char spills[] =
        ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry spills(.param .u64 to)\n{\n"
        "    .local .align 8 .b8 mine[1136];\n    .reg .b32 %r<3>;\n    .reg .b64 %a<4>;\n    .reg .pred %p;\n"
        "    ld.param.u64 %a0, [to];\n    mov.u32 %r0, %clock;\n    and.b32 %r0, %r0, 1016;\n"
        "    cvt.u64.u32 %a1, %r0;\n    mov.u64 %a2, mine;\n    add.u64 %a2, %a2, %a1;\n    st.local.u32 [%a2], %r0;\n"
        "    ld.local.u32 %r1, [%a2];\n    setp.eq.u64 %p, %a0, 0;\n    @%p bra done;\n    st.global.u32 [%a0], %r1;\n"
        "done:\n    ret;\n}\n";
    CUdeviceptr none = 0;
    void *parameters[] = {&none}, *module;
    CUDA_KERNEL_NODE_PARAMS kernel = {.gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    open_with_streams();
    must(cu.load(&module, spills), "cuModuleLoadData");
    must(cu.function((void **)&kernel.func, module, "spills"), "cuModuleGetFunction");
    must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
    bool there = CU(cuGraphAddKernelNode_v2)(&node, graph, NULL, 0, &kernel) == CUDA_SUCCESS;
    take_half();
    if (there && CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS)
        CU(cuGraphLaunch)(exec, NULL);
    cu.synchronize();
}

int main(void)
{
    run_parts();
}
