/* Threads of one program that meet in the limiter by every kind of call at once, for a build under ThreadSanitizer: the
 * limiter is linked in, and the driver is whatever it finds. Exit 0: all calls succeeded, or were refused for memory.
 */
#include "../../limiters/cuda/abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { CARDS = 2, THREADS = 4, ROUNDS = 40, PIECE = 2 << 20 };

/* Of as many cards as there are, two at most; written by main before a thread is started. */
static struct card {
    CUcontext context;
    CUfunction kernel;
} cards[CARDS];
static int card_count;

static const char KERNEL[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\n    ret;\n}\n";

static void expect(CUresult answer, const char *call)
{
    if (answer == CUDA_SUCCESS || answer == CUDA_ERROR_OUT_OF_MEMORY)
        return;
    fprintf(stderr, "%s: %d\n", call, answer);
    exit(1);
}

#define CALL(name, ...) expect(name(__VA_ARGS__), #name)

static void launch(const struct card *card, CUstream stream)
{
    CALL(cuLaunchKernel, card->kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void allocate(CUstream stream)
{
    CUdeviceptr plain = 0, ordered = 0;
    size_t free_bytes, total;
    /* Both at once, so that a limit below two pieces refuses one whatever the other threads do. */
    CUresult first = cuMemAlloc_v2(&plain, PIECE), second = cuMemAllocAsync(&ordered, PIECE, stream);
    CALL(cuMemGetInfo_v2, &free_bytes, &total);
    if (second == CUDA_SUCCESS)
        CALL(cuMemFreeAsync, ordered, stream);
    if (first == CUDA_SUCCESS)
        CALL(cuMemFree_v2, plain);
}

/* Memory of the host, for its page tables: more than are part of the context. */
static void pin(void)
{
    void *memory;
    if (cuMemHostAlloc(&memory, (size_t)768 << 20, 0) == CUDA_SUCCESS)
        CALL(cuMemFreeHost, memory);
}

static void capture(const struct card *card, CUstream stream)
{
    CUgraph graph;
    CUgraphExec made;
    CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    launch(card, stream);
    CALL(cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiateWithFlags, &made, graph, 0);
    CALL(cuGraphLaunch, made, stream);
    CALL(cuGraphExecDestroy, made);
}

static void *work(void *number)
{
    CUstream stream;
    const struct card *card = &cards[(int)(size_t)number % card_count];
    CALL(cuCtxSetCurrent, card->context);
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 10 == 0)
            CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        launch(card, stream);
        launch(card, NULL);
        allocate(stream);
        if (round % 10 == 0)
            pin();
        if ((round + (int)(size_t)number) % 4 == 0)
            capture(card, stream);
        if (round % 10 == 9)
            CALL(cuStreamDestroy_v2, stream);
    }
    return NULL;
}

int main(void)
{
    CUmodule module;
    pthread_t threads[THREADS];
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &card_count);
    card_count = card_count < CARDS ? card_count : CARDS;
    for (int card = 0; card < card_count; card++) {
        CALL(cuDevicePrimaryCtxRetain, &cards[card].context, card);
        CALL(cuCtxSetCurrent, cards[card].context);
        CALL(cuModuleLoadData, &module, KERNEL);
        CALL(cuModuleGetFunction, &cards[card].kernel, module, "empty");
    }
    for (size_t t = 0; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, work, (void *)t) != 0)
            return 1;
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    return 0;
}
