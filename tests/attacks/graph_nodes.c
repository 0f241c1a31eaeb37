/* What the driver keeps of executable graphs on the card is nothing that a call tells: for each branch, and for each
 * node, and no less when they are destroyed. */
#include "memory.h"

/* Kernels of 4 and of 4000 bytes of parameters. */
static const char kernels[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry small(.param .u32 n)\n{\n    ret;\n}\n"
                              ".visible .entry large(.param .align 8 .b8 n[4000])\n{\n    ret;\n}\n";
#define DEVICE_LAUNCH 4 /* CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH of cuda.h */

static CUfunction small, large;
static char parameters[4000];

static void open_kernels(void)
{
    CUmodule module;
    open_card();
    must((int)CU(cuModuleLoadData)(&module, kernels), "cuModuleLoadData");
    must((int)CU(cuModuleGetFunction)(&small, module, "small"), "cuModuleGetFunction");
    must((int)CU(cuModuleGetFunction)(&large, module, "large"), "cuModuleGetFunction");
}

static CUgraph empty_graph(void)
{
    CUgraph graph;
    must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
    return graph;
}

static CUgraphNode add(CUgraph graph, CUfunction kernel, const CUgraphNode *before)
{
    CUgraphNode node;
    void *values[] = {parameters};
    CUDA_KERNEL_NODE_PARAMS params = {kernel, 1, 1, 1, 1, 1, 1, 0, values, NULL, NULL, NULL};
    must((int)CU(cuGraphAddKernelNode_v2)(&node, graph, before, before != NULL, &params), "cuGraphAddKernelNode");
    return node;
}

static CUgraph beside_each_other(CUfunction kernel, unsigned count)
{
    CUgraph graph = empty_graph();
    for (unsigned i = 0; i < count; i++)
        add(graph, kernel, NULL);
    return graph;
}

static CUgraph in_a_row(CUfunction kernel, unsigned count)
{
    CUgraph graph = empty_graph();
    CUgraphNode node = add(graph, kernel, NULL);
    for (unsigned i = 1; i < count; i++)
        node = add(graph, kernel, &node);
    return graph;
}

/* As often as it is granted, but for so many times. */
static void instantiate(CUgraph graph, unsigned count, unsigned long long flags)
{
    CUgraphExec exec;
    for (unsigned i = 0; i < count && CU(cuGraphInstantiateWithFlags)(&exec, graph, flags) == CUDA_SUCCESS; i++)
        CU(cuGraphUpload)(exec, NULL);
    cu.synchronize();
}

PART(branches, "kernels beside each other")
{
    open_kernels();
    instantiate(beside_each_other(small, 100), 30, 0);
}

PART(one_of_many_branches, "2000 of them in one graph")
{
    open_kernels();
    instantiate(beside_each_other(small, 2000), 2, 0);
}

PART(behind_one, "kernels behind one")
{
    open_kernels();
    CUgraph graph = empty_graph();
    CUgraphNode first = add(graph, small, NULL);
    for (unsigned i = 0; i < 150; i++)
        add(graph, small, &first);
    instantiate(graph, 20, 0);
}

PART(rows, "kernels in a row")
{
    open_kernels();
    instantiate(in_a_row(small, 1000), 100, 0);
}

PART(rows_of_large_parameters, "kernels of large parameters")
{
    open_kernels();
    instantiate(in_a_row(large, 1000), 30, 0);
}

PART(small_graphs, "graphs of one kernel")
{
    open_kernels();
    instantiate(in_a_row(small, 1), 2500, 0);
}

PART(launched_by_the_card, "graphs that the card may launch")
{
    open_kernels();
    instantiate(beside_each_other(small, 100), 30, DEVICE_LAUNCH);
}

PART(children, "graphs in graphs")
{
    CUgraphNode node;
    open_kernels();
    CUgraph graph = empty_graph(), child = beside_each_other(small, 50), inner = empty_graph();
    must((int)CU(cuGraphAddChildGraphNode)(&node, inner, NULL, 0, child), "cuGraphAddChildGraphNode");
    for (unsigned i = 0; i < 4; i++)
        must((int)CU(cuGraphAddChildGraphNode)(&node, graph, NULL, 0, inner), "cuGraphAddChildGraphNode");
    instantiate(graph, 15, 0);
}

PART(brought_up, "brought up to larger parameters")
{
    CUgraphExec exec[8];
    CUgraphExecUpdateResultInfo info;
    open_kernels();
    CUgraph now = in_a_row(small, 2000), then = in_a_row(large, 2000);
    unsigned made = 0;
    while (made < 8 && CU(cuGraphInstantiateWithFlags)(&exec[made], now, 0) == CUDA_SUCCESS)
        made++;
    for (unsigned i = 0; i < made; i++) {
        CU(cuGraphExecUpdate_v2)(exec[i], then, &info);
        CU(cuGraphLaunch)(exec[i], NULL);
    }
    cu.synchronize();
}

/* The driver keeps what destroyed ones had. */
PART(destroyed, "destroyed ones")
{
    CUgraphExec exec[4];
    CUdeviceptr pointer;
    open_kernels();
    CUgraph graph = beside_each_other(small, 100);
    for (unsigned i = 0; i < 4; i++)
        must((int)CU(cuGraphInstantiateWithFlags)(&exec[i], graph, 0), "cuGraphInstantiateWithFlags");
    for (unsigned i = 0; i < 4; i++)
        must((int)CU(cuGraphExecDestroy)(exec[i]), "cuGraphExecDestroy");
    for (unsigned i = 0; i < times(2 * MIB) && cu.allocate((uint64_t *)&pointer, 2 * MIB) == 0; i++)
        ;
}

static void *instantiate_too(void *graph)
{
    must(cu.set(cu.context), "cuCtxSetCurrent");
    instantiate(graph, 8, 0);
    return NULL;
}

PART(in_threads, "clones in threads")
{
    CUgraph clone;
    pthread_t threads[4];
    open_kernels();
    CUgraph graph = beside_each_other(small, 100);
    for (unsigned i = 0; i < 4; i++) {
        must((int)CU(cuGraphClone)(&clone, graph), "cuGraphClone");
        must(pthread_create(&threads[i], NULL, instantiate_too, clone), "pthread_create");
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    run_parts();
}
