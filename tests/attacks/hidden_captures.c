/* Captures begun by seldom used names, in which a limiter that does not know of them launches something of its own. */
#include "memory.h"

static CUstream stream;

static CUresult begin_plainly(void)
{
    return CU(cuStreamBeginCapture_v2_ptsz)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult begin_first_form(void)
{
    return CU(cuStreamBeginCapture)(stream);
}

static CUresult begin_to_graph(void)
{
    CUgraph graph;
    must((int)CU(cuGraphCreate)(&graph, 0), "cuGraphCreate");
    return CU(cuStreamBeginCaptureToGraph)(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static CUresult agree(void *none, CUgraphNode node, const void *before, const void *after, int type)
{
    (void)none, (void)node, (void)before, (void)after, (void)type;
    return CUDA_SUCCESS;
}

/* A graph that was captured once is captured again. */
static CUresult begin_again(void)
{
    CUgraph graph;
    must((int)CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (unsigned i = 0; i < 64; i++) {
        unsigned ns = 100000;
        void *parameters[] = {&ns};
        must(cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
    }
    must((int)CU(cuStreamEndCapture)(stream, &graph), "cuStreamEndCapture");
    return CU(cuStreamBeginRecaptureToGraph)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, graph,
                                             (CUgraphRecaptureCallback)agree, NULL);
}

/* Nodes of a capture of 64 kernels, beside a thread that works; -1: the driver lacks this way. */
static int nodes_of(CUresult (*begin_capture)(void))
{
    CUgraph graph;
    size_t count = 0;
    unsigned ns = 100000;
    void *parameters[] = {&ns};
    for (unsigned i = 0; i < 8; i++)
        must(cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
    if (begin_capture() != CUDA_SUCCESS)
        return -1;
    for (unsigned i = 0; i < 64; i++) {
        if (cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) != 0)
            return 0;
        usleep(1000);
    }
    if (CU(cuStreamEndCapture)(stream, &graph) != CUDA_SUCCESS)
        return 0;
    must((int)CU(cuGraphGetNodes)(graph, NULL, &count), "cuGraphGetNodes");
    return (int)count;
}

int main(void)
{
    static CUresult (*const ways[])(void) = {begin_plainly, begin_first_form, begin_to_graph, begin_again};
    CUgraph unused;
    unsigned tried = 0;
    int wrong = 64;
    open_card();
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        int nodes = nodes_of(ways[i]);
        tried += nodes >= 0;
        if (nodes >= 0 && nodes != 64)
            wrong = nodes;
    }
    /* A capture that is abandoned: its work after it is limited. */
    CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CU(cuStreamDestroy_v2)(stream);
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (CU(cuStreamEndCapture)(stream, &unused) == CUDA_SUCCESS)
        wrong = -1;
    double core = (double)attack_number("ATTACK_CORE"), share = share_in(1.5, 2);
    verdict(wrong == 64 && share <= core + 8, "%u ways, %d nodes of 64, then %.0f %% of the device of %.0f", tried,
            wrong, share, core);
}
