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
#define LARGE 1 /* which fits a card and no limit */

static void run(CUfunction function)
{
    CUdeviceptr none = 0;
    void *parameters[] = {&none};
    CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    cu.synchronize();
}

PART(of_modules, "kernels of modules")
{
    CUmodule module;
    CUfunction function;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuModuleLoadData)(&module, texts[i]) == CUDA_SUCCESS &&
            CU(cuModuleGetFunction)(&function, module, "spills") == CUDA_SUCCESS)
            run(function);
}

PART(of_libraries, "kernels of libraries")
{
    CUlibrary library;
    CUkernel kernel;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuLibraryLoadData)(&library, texts[i], NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS &&
            CU(cuLibraryGetKernel)(&kernel, library, "spills") == CUDA_SUCCESS)
            run((CUfunction)kernel);
}

/* All are loaded at once, before one has run: then nothing is left to be refused that has not its local memory yet. */
static CUfunction of_text(unsigned i)
{
    static CUfunction functions[TEXTS];
    CUmodule module;
    for (unsigned j = 0; functions[TEXTS - 1] == NULL && j < TEXTS; j++) {
        must((int)CU(cuModuleLoadData)(&module, texts[j]), "cuModuleLoadData");
        must((int)CU(cuModuleGetFunction)(&functions[j], module, "spills"), "cuModuleGetFunction");
    }
    return functions[i];
}

/* What fits is had first, and then all else is taken. */
PART(then_all_else, "kernels, and then all else")
{
    open_card();
    CUfunction function = of_text(1);
    take_memory();
    run(function);
}

static void launch_exec(CUgraphExec exec)
{
    CU(cuGraphLaunch)(exec, NULL);
    cu.synchronize();
}

static void launch(CUgraph graph)
{
    CUgraphExec exec;
    if (CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS)
        launch_exec(exec);
}

static CUDA_KERNEL_NODE_PARAMS one_thread(unsigned i)
{
    static CUdeviceptr none;
    static void *parameters[] = {&none};
    return (CUDA_KERNEL_NODE_PARAMS){of_text(i), 1, 1, 1, 1, 1, 1, 0, parameters, NULL, NULL, NULL};
}

/* A graph of a kernel. */
static CUgraph of_kernel(unsigned i, CUgraphNode *node)
{
    CUDA_KERNEL_NODE_PARAMS params = one_thread(i);
    CUgraph graph;
    must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
    CU(cuGraphAddKernelNode_v2)(node, graph, NULL, 0, &params);
    return graph;
}

PART(of_nodes, "kernels of nodes of graphs")
{
    CUgraphNode node;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        launch(of_kernel(i, &node));
}

/* A node is asked for with a kernel that is another when the driver looks. */
static CUDA_KERNEL_NODE_PARAMS asked;
static void *change_kernel(void *nothing)
{
    for (;;)
        for (unsigned i = 0; i <= LARGE; i += LARGE) {
            *(CUfunction volatile *)&asked.func = of_text(i);
            for (volatile unsigned wait = 0; wait < 20; wait++) {
            }
        }
    return nothing;
}

PART(of_changing_nodes, "kernels of nodes that change")
{
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS got;
    pthread_t thread;
    open_card();
    asked = one_thread(0);
    must(pthread_create(&thread, NULL, change_kernel, NULL), "pthread_create");
    for (unsigned i = 0; i < 20000; i++) {
        CUgraph graph;
        must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
        if (CU(cuGraphAddKernelNode_v2)(&node, graph, NULL, 0, &asked) == CUDA_SUCCESS &&
            CU(cuGraphKernelNodeGetParams_v2)(node, &got) == CUDA_SUCCESS && got.func == of_text(LARGE))
            launch(graph);
        CU(cuGraphDestroy)(graph);
    }
}

/* A kernel of a library has a function in each context, by another handle. */
PART(of_kernels_functions, "functions of kernels")
{
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuLibraryLoadData)(&library, texts[i], NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS &&
            CU(cuLibraryGetKernel)(&kernel, library, "spills") == CUDA_SUCCESS &&
            CU(cuKernelGetFunction)(&function, kernel) == CUDA_SUCCESS)
            run(function);
}

/* Other kernels than a graph was instantiated with, by each of the calls that set them. */
PART(set_in_executables, "kernels set in executable graphs")
{
    CUgraphNode node;
    CUgraphExec exec;
    open_card();
    must((int)CU(cuGraphInstantiateWithFlags)(&exec, of_kernel(0, &node), 0), "cuGraphInstantiate");
    for (unsigned i = 0; i < TEXTS; i++) {
        CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = one_thread(i)};
        CUDA_KERNEL_NODE_PARAMS_v1 old;
        memcpy(&old, &any.kernel, sizeof old);
        if (CU(cuGraphExecKernelNodeSetParams_v2)(exec, node, &any.kernel) == CUDA_SUCCESS)
            launch_exec(exec);
        if (CU(cuGraphExecKernelNodeSetParams)(exec, node, &old) == CUDA_SUCCESS)
            launch_exec(exec);
        if (CU(cuGraphExecNodeSetParams)(exec, node, &any) == CUDA_SUCCESS)
            launch_exec(exec);
    }
}

/* The same of a graph that is set before it is instantiated, and of executables that are brought up to another. */
PART(brought_up, "executable graphs brought up to others")
{
    CUgraphNode node, child;
    CUgraphExec exec, of_child;
    CUgraph parent, graph;
    CUgraphExecUpdateResultInfo info;
    open_card();
    graph = of_kernel(0, &node);
    must((int)CU(cuGraphCreate)(&parent, 0), "cuGraphCreate");
    must((int)CU(cuGraphAddChildGraphNode)(&child, parent, NULL, 0, graph), "cuGraphAddChildGraphNode");
    must((int)CU(cuGraphInstantiateWithFlags)(&exec, graph, 0), "cuGraphInstantiate");
    must((int)CU(cuGraphInstantiateWithFlags)(&of_child, parent, 0), "cuGraphInstantiate");
    for (unsigned i = 0; i < TEXTS; i++) {
        CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = one_thread(i)};
        if (CU(cuGraphKernelNodeSetParams_v2)(node, &any.kernel) != CUDA_SUCCESS &&
            CU(cuGraphNodeSetParams)(node, &any) != CUDA_SUCCESS)
            continue;
        if (CU(cuGraphExecUpdate_v2)(exec, graph, &info) == CUDA_SUCCESS)
            launch_exec(exec);
        if (CU(cuGraphExecChildGraphNodeSetParams)(of_child, child, graph) == CUDA_SUCCESS)
            launch_exec(of_child);
        launch(graph);
    }
}

/* In what is run if a condition holds, or while it does. */
PART(of_bodies, "kernels in bodies of conditions")
{
    open_card();
    for (unsigned i = 0; i < TEXTS; i++) {
        CUgraph graph;
        CUgraphNode branch, node;
        CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                 .conditional = {.type = CU_GRAPH_COND_TYPE_IF, .size = 1}};
        CUgraphNodeParams kernel = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = one_thread(i)};
        CU(cuCtxGetCurrent)(&any.conditional.ctx);
        must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
        must((int)CU(cuGraphConditionalHandleCreate)(&any.conditional.handle, graph, any.conditional.ctx, 1,
                                                     CU_GRAPH_COND_ASSIGN_DEFAULT),
             "cuGraphConditionalHandleCreate");
        must((int)CU(cuGraphAddNode_v2)(&branch, graph, NULL, NULL, 0, &any), "cuGraphAddNode");
        if (CU(cuGraphAddNode_v2)(&node, any.conditional.phGraph_out[0], NULL, NULL, 0, &kernel) == CUDA_SUCCESS)
            launch(graph);
    }
}

PART(of_captures, "kernels that are captured")
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
PART(of_contexts, "kernels in two contexts")
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
    run_parts();
}
