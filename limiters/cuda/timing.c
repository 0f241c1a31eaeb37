/* hetero-timing-cuda: what calls of the CUDA driver cost in this process, for `hetero bench overhead`.
 *
 * Each call is timed one by one with the host's clock and the median and the 99th percentile are printed, in
 * nanoseconds, as one JSON object. The driver is found by dlopen and dlsym, as programs find it.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi.h"

/* Launches between two synchronisations: few enough that the driver's queue never fills and makes one wait. */
#define BURST 64

static const char EMPTY_KERNEL[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\n    ret;\n}\n";

#define CALLS(X) \
    X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuModuleLoadData) \
    X(cuModuleGetFunction) X(cuLaunchKernel) X(cuCtxSynchronize) X(cuMemAlloc_v2) X(cuMemFree_v2) \
    X(cuMemGetInfo_v2)

/* Filled once by open_driver before anything is timed, then only read. */
#define DECLARE(name) static __typeof__(name) *p_##name;
CALLS(DECLARE)

static void open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "hetero-timing-cuda: %s\n", dlerror());
        exit(4);
    }
#define FIND(name) \
    if (!(p_##name = (__typeof__(name) *)dlsym(driver, #name))) { \
        fprintf(stderr, "hetero-timing-cuda: the driver has no " #name "\n"); \
        exit(4); \
    }
    CALLS(FIND)
}

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "hetero-timing-cuda: %s: error %d\n", call, result);
        exit(1);
    }
}

#define CALL(name, ...) check(p_##name(__VA_ARGS__), #name)

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* What the timed calls work on: set once by main, then only read. */
static CUfunction kernel;

static void launch(void)
{
    CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void synchronize(void)
{
    CALL(cuCtxSynchronize);
}

static void launch_and_synchronize(void)
{
    launch();
    synchronize();
}

static void allocate_and_free(void)
{
    CUdeviceptr memory;
    CALL(cuMemAlloc_v2, &memory, 2 << 20);
    CALL(cuMemFree_v2, memory);
}

static void ask_memory(void)
{
    size_t free_bytes, total;
    CALL(cuMemGetInfo_v2, &free_bytes, &total);
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Times `count` bursts of launches as a whole: what the clock itself costs is spread over a burst. In hundredths of a
 * nanosecond, for the median of a launch. */
static void time_bursts(unsigned count)
{
    uint64_t *taken = calloc(count, sizeof *taken);
    if (!taken) {
        perror("hetero-timing-cuda");
        exit(1);
    }
    for (unsigned i = 0; i < count; i++) {
        uint64_t begun = now();
        for (unsigned j = 0; j < BURST; j++)
            launch();
        taken[i] = (now() - begun) * 100 / BURST;
        synchronize();
    }
    qsort(taken, count, sizeof *taken, ascending);
    printf(", \"launch in a row\": {\"median\": %.2f, \"p99\": %.2f}", (double)taken[count / 2] / 100,
           (double)taken[(uint64_t)count * 99 / 100] / 100);
    free(taken);
}

/* Times `count` calls of `call`, with an untimed `settle` after every BURST of them. */
static void time_calls(const char *name, unsigned count, void (*call)(void), void (*settle)(void))
{
    uint64_t *taken = calloc(count, sizeof *taken);
    if (!taken) {
        perror("hetero-timing-cuda");
        exit(1);
    }
    for (unsigned i = 0; i < BURST; i++)
        call();
    settle();
    for (unsigned i = 0; i < count; i++) {
        uint64_t begun = now();
        call();
        taken[i] = now() - begun;
        if (i % BURST == BURST - 1)
            settle();
    }
    settle();
    qsort(taken, count, sizeof *taken, ascending);
    printf(", \"%s\": {\"median\": %llu, \"p99\": %llu}", name, (unsigned long long)taken[count / 2],
           (unsigned long long)taken[(uint64_t)count * 99 / 100]);
    free(taken);
}

int main(int argc, char **argv)
{
    char *end = "";
    unsigned long count = argc == 2 ? strtoul(argv[1], &end, 10) : 2000;
    if (argc > 2 || *end || count < 1 || count > 1000000) {
        fprintf(stderr, "usage: hetero-timing-cuda [COUNT]: times COUNT calls of each kind (default 2000)\n");
        return 2;
    }
    open_driver();

    uint64_t begun = now();
    CALL(cuInit, 0);
    uint64_t init = now() - begun;
    CUdevice device;
    CALL(cuDeviceGet, &device, 0);
    CUcontext context;
    begun = now();
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    uint64_t retain = now() - begun;
    CALL(cuCtxSetCurrent, context);
    CUmodule module;
    CALL(cuModuleLoadData, &module, EMPTY_KERNEL);
    CALL(cuModuleGetFunction, &kernel, module, "empty");

    printf("{\"initialise\": {\"median\": %llu}, \"make a context\": {\"median\": %llu}", (unsigned long long)init,
           (unsigned long long)retain);
    time_calls("launch", count, launch, synchronize);
    time_bursts(count / 16 + 1);
    time_calls("launch and synchronise", count, launch_and_synchronize, synchronize);
    time_calls("allocate and free 2 MiB", count / 4 + 1, allocate_and_free, synchronize);
    time_calls("ask for free memory", count, ask_memory, synchronize);
    puts("}");
    return 0;
}
