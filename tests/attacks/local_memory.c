/* Kernels whose threads have large arrays of their own, which the driver holds for all threads of the card at once. */
#include "memory.h"

/* The first is what a context has of it by itself; of the second 132 x 2048 threads have 792 MiB beyond that. */
#define ARRAY(bytes)                                                                                                   \
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry spills(.param .u64 to)\n{\n"                       \
    "    .local .align 8 .b8 mine[" #bytes "];\n    .reg .b32 %r<3>;\n    .reg .b64 %a<4>;\n    .reg .pred %p;\n"      \
    "    ld.param.u64 %a0, [to];\n    mov.u32 %r0, %clock;\n    and.b32 %r0, %r0, " #bytes " - 8;\n"                   \
    "    cvt.u64.u32 %a1, %r0;\n    mov.u64 %a2, mine;\n    add.u64 %a2, %a2, %a1;\n    st.local.u32 [%a2], %r0;\n"    \
    "    ld.local.u32 %r1, [%a2];\n    setp.eq.u64 %p, %a0, 0;\n    @%p bra done;\n    st.global.u32 [%a0], %r1;\n"    \
    "done:\n    ret;\n}\n"
static const char *const texts[] = {ARRAY(1024), ARRAY(4096), ARRAY(32768), ARRAY(131072), ARRAY(524288)};
#define TEXTS (sizeof texts / sizeof *texts)

static void run(CUfunction function)
{
    CUdeviceptr none = 0;
    void *parameters[] = {&none};
    CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    cu.synchronize();
}

static void of_modules(void)
{
    CUmodule module;
    CUfunction function;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuModuleLoadData)(&module, texts[i]) == CUDA_SUCCESS &&
            CU(cuModuleGetFunction)(&function, module, "spills") == CUDA_SUCCESS)
            run(function);
}

static void of_libraries(void)
{
    CUlibrary library;
    CUkernel kernel;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuLibraryLoadData)(&library, texts[i], NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS &&
            CU(cuLibraryGetKernel)(&kernel, library, "spills") == CUDA_SUCCESS)
            run((CUfunction)kernel);
}

static CUfunction of_text(unsigned i)
{
    CUmodule module;
    CUfunction function;
    must((int)CU(cuModuleLoadData)(&module, texts[i]), "cuModuleLoadData");
    must((int)CU(cuModuleGetFunction)(&function, module, "spills"), "cuModuleGetFunction");
    return function;
}

/* What fits is had first, and then all else is taken. */
static void then_all_else(void)
{
    open_card();
    CUfunction function = of_text(1);
    take_memory();
    run(function);
}

static void launch(CUgraph graph)
{
    CUgraphExec exec;
    if (CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS)
        CU(cuGraphLaunch)(exec, NULL);
    cu.synchronize();
}

static void of_nodes(void)
{
    CUdeviceptr none = 0;
    void *parameters[] = {&none};
    CUgraph graph;
    CUgraphNode node;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++) {
        CUDA_KERNEL_NODE_PARAMS params = {of_text(i), 1, 1, 1, 1, 1, 1, 0, parameters, NULL, NULL, NULL};
        must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
        must((int)CU(cuGraphAddKernelNode_v2)(&node, graph, NULL, 0, &params), "cuGraphAddKernelNode");
        launch(graph);
    }
}

static void of_captures(void)
{
    CUdeviceptr none = 0;
    void *parameters[] = {&none};
    CUstream stream;
    CUgraph graph;
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (unsigned i = 0; i < TEXTS; i++) {
        CUfunction function = of_text(i);
        must((int)CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
        CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
        if (CU(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS)
            launch(graph);
    }
}

/* In a context that was made after the kernel was launched, and by a kernel of a library in each of two. */
static void of_contexts(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUcontext context;
    open_card();
    must((int)CU(cuLibraryLoadData)(&library, texts[1], NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData");
    must((int)CU(cuLibraryGetKernel)(&kernel, library, "spills"), "cuLibraryGetKernel");
    take_memory();
    run((CUfunction)kernel);
    if (CU(cuCtxCreate_v2)(&context, 0, 0) == CUDA_SUCCESS)
        run((CUfunction)kernel);
}

int main(void)
{
    static const struct part parts[] = {
        {"kernels of modules", of_modules},
        {"kernels of libraries", of_libraries},
        {"kernels, and then all else", then_all_else},
        {"kernels of nodes of graphs", of_nodes},
        {"kernels that are captured", of_captures},
        {"kernels in two contexts", of_contexts},
    };
    RUN_PARTS(parts);
}
