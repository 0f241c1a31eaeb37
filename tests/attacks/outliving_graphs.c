/* Memory of graphs that outlives what allocated it. */
#include "memory.h"

#define TAKEN (24 * MIB) /* a pool takes 32 for it */

/* A graph that allocates so much, and frees if so wished. */
static CUgraph allocating_bytes(size_t bytes, bool freeing, CUdeviceptr *pointer)
{
    CUgraph graph;
    CUgraphNode allocation, end;
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .accessDescs = &access,
        .accessDescCount = 1,
        .bytesize = bytes};
    must(CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
    must(CU(cuGraphAddMemAllocNode)(&allocation, graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
    if (freeing)
        must(CU(cuGraphAddMemFreeNode)(&end, graph, &allocation, 1, params.dptr), "cuGraphAddMemFreeNode");
    *pointer = params.dptr;
    return graph;
}

static CUgraph allocating(bool freeing, CUdeviceptr *pointer)
{
    return allocating_bytes(TAKEN, freeing, pointer);
}

static CUresult launch(CUgraph graph, unsigned long long flags, CUstream stream, CUgraphExec *exec)
{
    CUresult answer = CU(cuGraphInstantiateWithFlags)(exec, graph, flags);
    return answer != CUDA_SUCCESS ? answer : CU(cuGraphLaunch)(*exec, stream);
}

/* Launch a graph that does not free, and destroy all of it. */
static CUresult launch_and_destroy(CUdeviceptr *pointer)
{
    CUgraphExec exec;
    CUgraph graph = allocating(false, pointer);
    CUresult answer = launch(graph, 0, NULL, &exec);
    if (answer == CUDA_SUCCESS) {
        must((int)CU(cuStreamSynchronize)(NULL), "cuStreamSynchronize");
        CU(cuGraphExecDestroy)(exec);
    }
    CU(cuGraphDestroy)(graph);
    return answer;
}

PART(exec_destroyed, "graphs destroyed after a launch")
{
    CUdeviceptr pointer;
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++)
        launch_and_destroy(&pointer);
}

/* What outlived its graph is freed where no stream comes. */
PART(freed_behind, "freed where no stream comes")
{
    CUdeviceptr pointer;
    open_card();
    CUstream stream = blocked_stream();
    for (unsigned i = 0; i < times(TAKEN) && launch_and_destroy(&pointer) == CUDA_SUCCESS; i++)
        CU(cuMemFreeAsync)(pointer, stream);
}

/* Each frees what it takes, at its end, to which its stream does not come. */
PART(side_by_side, "launched in blocked streams")
{
    CUdeviceptr pointer;
    CUgraphExec exec;
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUstream stream = blocked_stream();
        if (stream == NULL || launch(allocating(true, &pointer), 0, stream, &exec) != CUDA_SUCCESS)
            break;
    }
}

PART(relaunched, "launched again while blocked")
{
    CUdeviceptr pointer;
    CUgraphExec execs[2];
    open_card();
    for (unsigned i = 0; i < 2; i++)
        launch(allocating(false, &pointer), CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, NULL, &execs[i]);
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUstream stream = i % 3 == 0 ? blocked_stream() : NULL;
        if ((i % 3 == 0 && stream == NULL) || CU(cuGraphLaunch)(execs[i % 2], stream) != CUDA_SUCCESS)
            break;
    }
}

PART(captured, "captured and destroyed")
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;
    open_card();
    must(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (unsigned i = 0; i < times(TAKEN); i++) {
        must(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
        must(CU(cuMemAllocAsync)(&pointer, TAKEN, stream), "cuMemAllocAsync in a capture");
        must(CU(cuStreamEndCapture)(stream, &graph), "cuStreamEndCapture");
        if (launch(graph, 0, stream, &exec) != CUDA_SUCCESS)
            continue;
        must(CU(cuStreamSynchronize)(stream), "cuStreamSynchronize");
        CU(cuGraphExecDestroy)(exec);
    }
}

PART(uploaded, "uploaded")
{
    CUdeviceptr pointer;
    CUgraphExec exec;
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++)
        if (CU(cuGraphInstantiateWithFlags)(&exec, allocating(false, &pointer), 0) == CUDA_SUCCESS)
            CU(cuGraphUpload)(exec, NULL);
}

/* Executables that are brought up to graphs which allocate more, before and after their first launch. */
PART(brought_up, "brought up to larger graphs")
{
    CUdeviceptr pointer;
    CUgraphExecUpdateResultInfo info;
    open_card();
    for (unsigned i = 0; i < 2; i++) {
        CUgraphExec exec;
        if (CU(cuGraphInstantiateWithFlags)(&exec, allocating_bytes(MIB, true, &pointer), 0) != CUDA_SUCCESS)
            continue;
        if (i == 1)
            CU(cuGraphLaunch)(exec, NULL);
        for (size_t bytes = TAKEN; bytes <= 16 * TAKEN; bytes *= 2)
            if (CU(cuGraphExecUpdate_v2)(exec, allocating_bytes(bytes, true, &pointer), &info) == CUDA_SUCCESS)
                CU(cuGraphLaunch)(exec, NULL);
    }
}

int main(void)
{
    run_parts();
}
