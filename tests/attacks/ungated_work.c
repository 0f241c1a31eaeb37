/* Work by the calls that are seldom used, and for which a limiter may have no gate. */
#include "memory.h"

#define SIZE     (8 * MIB)
#define QUEUED   4
#define IN_A_ROW 32
#define SHORT_MS 0.1
#define NODES    16
#define ROUNDS   1000000

#define SECONDS       1.0
#define BURST_SECONDS 0.3
#define ALONE_SECONDS 0.1

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

static CUresult launch_graph(void)
{
    return CU(cuGraphLaunch_ptsz)(graph, NULL);
}

/* Nodes one after the other, uploaded and launched. With a single one events round many launches probably tell of more
 * than the device works: such launches had 35.5 to 39.3 of 30 on an H100 by that (2026-11-26). */
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

/* How long the device works for so many in a row, in ms: the shortest of five times, each behind a kernel, so that no
 * launch is waited for. 0: the driver lacks it. */
static double row_ms(CUresult (*work)(void), unsigned count)
{
    CUevent events[2];
    double shortest = 1e9;
    for (unsigned i = 0; i < 2; i++)
        must((int)CU(cuEventCreate)(&events[i], CU_EVENT_DEFAULT), "cuEventCreate");
    for (unsigned i = 0; i < 5; i++) {
        float ms;
        unsigned ns = 2000000;
        void *parameters[] = {&ns};
        must(cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, parameters, NULL), "cuLaunchKernel");
        must((int)CU(cuEventRecord)(events[0], CU_STREAM_PER_THREAD), "cuEventRecord");
        for (unsigned n = 0; n < count; n++)
            if (work() != CUDA_SUCCESS)
                return 0;
        must((int)CU(cuEventRecord)(events[1], CU_STREAM_PER_THREAD), "cuEventRecord");
        must(cu.synchronize(), "cuCtxSynchronize");
        must((int)CU(cuEventElapsedTime)(&ms, events[0], events[1]), "cuEventElapsedTime");
        shortest = ms < shortest ? ms : shortest;
    }
    return shortest;
}

/* And for one: events round a copy of 8 MiB tell of more than the copy takes on a fast card. */
static double device_ms(CUresult (*work)(void))
{
    double ms = row_ms(work, 1);
    return ms < SHORT_MS ? row_ms(work, IN_A_ROW) / IN_A_ROW : ms;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static unsigned rounds_for(CUresult (*work)(void), double seconds, double ms[ROUNDS])
{
    uint64_t since = now_ns();
    unsigned rounds = 0;
    while ((double)(now_ns() - since) < seconds * 1e9 && rounds < ROUNDS) {
        uint64_t begun = now_ns();
        for (unsigned i = 0; i < QUEUED; i++)
            must((int)work(), "the work");
        must(cu.synchronize(), "cuCtxSynchronize");
        ms[rounds++] = (double)(now_ns() - begun) / 1e6;
    }
    return rounds;
}

static double rounds_ms[ROUNDS];

/* How long the device works for one, told without a limiter in two ways, each too much: by events round it, and by how
 * long most rounds of the loop take. Events round a prefetch tell of the host's part of it, too, which the next one's
 * overlaps: by them alone a program without any limit had 115 to 122 % of an H100. Under a limiter neither tells it:
 * behind a closed gate prefetches begin at once, each waits for the host, and rounds take half as long again. */
static double alone_ms(CUresult (*work)(void))
{
    double ms = device_ms(work);
    if (ms <= 0)
        return 0;
    unsigned rounds = rounds_for(work, ALONE_SECONDS, rounds_ms);
    qsort(rounds_ms, rounds, sizeof *rounds_ms, compare);
    double usual_ms = rounds_ms[rounds / 2] / QUEUED;
    return ms < usual_ms ? ms : usual_ms;
}

/* What share of the device's time this work gets, in percent. A burst that the grant saved up is spent before. */
static double share_of(CUresult (*work)(void), double ms)
{
    rounds_for(work, BURST_SECONDS, rounds_ms);
    uint64_t since = now_ns();
    unsigned rounds = rounds_for(work, SECONDS, rounds_ms);
    return 100e6 * ms * QUEUED * rounds / (double)(now_ns() - since);
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
    {"cuGraphLaunch_ptsz", launch_graph},
};

/* Without a limiter: how long one of each takes; 0: the driver lacks it. */
static void print_alone(void)
{
    printf("{\"alone\": \"");
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++)
        printf("%.6f ", alone_ms(ways[i].work));
    printf("\"}\n");
    fflush(stdout);
    _exit(0);
}

/* A second has two time slices at its ends, which may lie in it or not: three points. All ways together are held to the
 * share within one. */
int main(void)
{
    double core = (double)attack_number("ATTACK_CORE"), most = 0, sum = 0;
    const char *name = "none", *alone = getenv("ATTACK_ALONE");
    unsigned tried = 0;
    open_card();
    must(cu.allocate((uint64_t *)&to, SIZE) || cu.allocate((uint64_t *)&from, SIZE), "cuMemAlloc");
    must((int)CU(cuMemAllocManaged)(&managed, SIZE, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    make_graph();
    if (alone == NULL)
        print_alone();
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        double ms = strtod(alone, (char **)&alone), share = ms > 0 ? share_of(ways[i].work, ms) : 0;
        tried += ms > 0;
        sum += share;
        if (share > most) {
            most = share;
            name = ways[i].name;
        }
    }
    verdict(tried > 0 && most <= core + 3 && sum / tried <= core + 1,
            "%u ways, %.1f %% of the device of %.0f, %.1f by %s", tried, sum / tried, core, most, name);
}
