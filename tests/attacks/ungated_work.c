/* Work by the calls that are seldom used, and for which a limiter may have no gate. */
#include "memory.h"

#define SIZE     (8 * MIB)
#define NODES    16
#define ROUND_MS 2

#define SECONDS       0.8
#define FREE_SECONDS  0.25
#define BURST_SECONDS 0.25

static CUdeviceptr to, from, managed;
static CUgraphExec graph;

struct attributes { /* CUmemcpyAttributes of cuda.h */
    int order;
    CUmemLocation from, to;
    unsigned flags;
};

static CUresult copy_with_attributes(void)
{
    struct attributes attributes = {.order = 1};
    return CU(cuMemcpyWithAttributesAsync)(to, from, SIZE, (CUmemcpyAttributes *)&attributes, CU_STREAM_PER_THREAD);
}

static CUresult copy_with_attributes_ptsz(void)
{
    struct attributes attributes = {.order = 1};
    return CU(cuMemcpyWithAttributesAsync_ptsz)(to, from, SIZE, (CUmemcpyAttributes *)&attributes, NULL);
}

static CUresult copy_batch(void)
{
    struct attributes attributes = {.order = 1};
    size_t size = SIZE, first = 0;
    return CU(cuMemcpyBatchAsync_v2)(&to, &from, &size, 1, (CUmemcpyAttributes *)&attributes, &first, 1,
                                     CU_STREAM_PER_THREAD);
}

static CUresult copy_peer(void)
{
    return CU(cuMemcpyPeerAsync_ptsz)(to, cu.context, from, cu.context, SIZE, NULL);
}

/* There and back. */
static CUresult prefetch(void)
{
    CUresult answer = CU(cuMemPrefetchAsync)(managed, SIZE, 0, CU_STREAM_PER_THREAD);
    return answer != CUDA_SUCCESS ? answer : CU(cuMemPrefetchAsync)(managed, SIZE, CU_DEVICE_CPU, CU_STREAM_PER_THREAD);
}

static CUresult prefetch_v2(void)
{
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUresult answer = CU(cuMemPrefetchAsync_v2_ptsz)(managed, SIZE, here, 0, NULL);
    return answer != CUDA_SUCCESS ? answer : CU(cuMemPrefetchAsync_v2_ptsz)(managed, SIZE, host, 0, NULL);
}

static CUresult prefetch_batch(void)
{
    CUmemLocation places[2] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, {CU_MEM_LOCATION_TYPE_HOST, 0}};
    size_t size = SIZE, first = 0;
    CUresult answer = CUDA_SUCCESS;
    for (unsigned i = 0; i < 2 && answer == CUDA_SUCCESS; i++)
        answer = CU(cuMemPrefetchBatchAsync)(&managed, &size, 1, &places[i], &first, 1, 0, CU_STREAM_PER_THREAD);
    return answer;
}

static CUresult discard(void)
{
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    size_t size = SIZE, first = 0;
    CUresult answer = CU(cuMemDiscardAndPrefetchBatchAsync)(&managed, &size, 1, &here, &first, 1, 0,
                                                            CU_STREAM_PER_THREAD);
    return answer != CUDA_SUCCESS ? answer : prefetch();
}

static CUresult fill(void)
{
    return CU(cuMemsetD32Async_ptsz)(to, 1, SIZE / 4, NULL);
}

static CUresult launch_graph(void)
{
    return CU(cuGraphLaunch_ptsz)(graph, NULL);
}

/* Nodes one after the other, uploaded and launched. */
static void make_graph(void)
{
    CUgraph of;
    CUgraphNode node = NULL, before;
    CUDA_MEMSET_NODE_PARAMS params = {.dst = to, .value = 1, .elementSize = 4, .width = SIZE / 4, .height = 1};
    must((int)CU(cuGraphCreate)(&of, 0), "cuGraphCreate");
    for (unsigned i = 0; i < NODES; i++) {
        before = node;
        must((int)CU(cuGraphAddMemsetNode)(&node, of, &before, i > 0, &params, cu.context), "cuGraphAddMemsetNode");
    }
    must((int)CU(cuGraphInstantiateWithFlags)(&graph, of, 0), "cuGraphInstantiateWithFlags");
    CU(cuGraphUpload)(graph, CU_STREAM_PER_THREAD);
}

/* Have whoever runs this program set the grant's core to so many percent: the file that says it is gone then. */
static void set_core(unsigned percent)
{
    const char *wanted = getenv("ATTACK_WANTED");
    char written[4096];
    snprintf(written, sizeof written, "%s.written", wanted);
    FILE *file = fopen(written, "w");
    must(file == NULL || fprintf(file, "%u", percent) < 0 || fclose(file) != 0 || rename(written, wanted) != 0, wanted);
    for (uint64_t since = now_ns(); access(wanted, F_OK) == 0; usleep(1000))
        must(now_ns() - since > 10000000000u, "nobody set the core");
    usleep(100000); /* who waits at the gate looks each 50 ms */
}

/* How many are done in a second: `queued` at a time, then they are waited for. */
static double rate_of(CUresult (*work)(void), unsigned queued, double seconds)
{
    uint64_t since = now_ns(), now = since;
    unsigned done = 0;
    for (; (double)(now - since) < seconds * 1e9; now = now_ns(), done += queued) {
        for (unsigned i = 0; i < queued; i++)
            must((int)work(), "the work");
        must(cu.synchronize(), "cuCtxSynchronize");
    }
    return done / ((double)(now - since) / 1e9);
}

/* So many that the device works for some milliseconds: what the host does between two rounds is little beside it. */
static unsigned queued_for(CUresult (*work)(void))
{
    double ms = 1e3 / rate_of(work, 16, FREE_SECONDS / 2);
    return ms < ROUND_MS ? (unsigned)(ROUND_MS / ms) + 1 : 1;
}

/* What part of its rate without a limit this work has under the grant, in percent; 0: the driver lacks it. Both are of
 * one process, and the host's part of the calls is in both: how long the device works for a prefetch cannot be told by
 * events or by rounds of another process (34 to 39 of 30 on H100s, where the same rate was 28.7 % of its own). */
static double share_of(CUresult (*work)(void), unsigned core)
{
    set_core(100);
    if (work() != CUDA_SUCCESS)
        return 0;
    unsigned queued = queued_for(work);
    double unlimited = rate_of(work, queued, FREE_SECONDS);
    set_core(core);
    rate_of(work, queued, BURST_SECONDS); /* what the grant saved up is spent */
    return 100 * rate_of(work, queued, SECONDS) / unlimited;
}

static const struct {
    const char *name;
    CUresult (*work)(void);
} ways[] = {
    {"cuMemcpyWithAttributesAsync", copy_with_attributes},
    {"cuMemcpyWithAttributesAsync_ptsz", copy_with_attributes_ptsz},
    {"cuMemcpyBatchAsync_v2", copy_batch},
    {"cuMemcpyPeerAsync_ptsz", copy_peer},
    {"cuMemPrefetchAsync", prefetch},
    {"cuMemPrefetchAsync_v2_ptsz", prefetch_v2},
    {"cuMemPrefetchBatchAsync", prefetch_batch},
    {"cuMemDiscardAndPrefetchBatchAsync", discard},
    {"cuMemsetD32Async_ptsz", fill},
    {"cuGraphLaunch_ptsz", launch_graph},
};

/* Two time slices at the ends of 0.8 s may lie in it or not: three points. All ways together are held to the share
 * within one. */
int main(void)
{
    unsigned core = (unsigned)attack_number("ATTACK_CORE"), tried = 0;
    double most = 0, sum = 0;
    const char *name = "none";
    open_card();
    must(cu.allocate((uint64_t *)&to, SIZE) || cu.allocate((uint64_t *)&from, SIZE), "cuMemAlloc");
    must((int)CU(cuMemAllocManaged)(&managed, SIZE, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    make_graph();
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        double share = share_of(ways[i].work, core);
        fprintf(stderr, "%s %.1f\n", ways[i].name, share);
        tried += share > 0;
        sum += share;
        if (share > most) {
            most = share;
            name = ways[i].name;
        }
    }
    verdict(tried > 0 && most <= core + 3 && sum / tried <= core + 1,
            "%u ways, %.1f %% of their rates without a limit of %u, %.1f by %s", tried, sum / tried, core, most, name);
}
