/* hetero-timing-cuda: what the CUDA driver costs a process, at its start and per call, for `hetero bench overhead`.
 *
 * Calls are timed with the host's clock. The median and the 99th percentile are printed in nanoseconds, as one JSON
 * object. The driver is found by dlopen and dlsym, as programs find it. --starts times other processes: copies of this
 * program that start at once, each until it has its first memory.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/abi.h"

/* Launches between two synchronisations: so few that the driver's queue never fills and blocks a launch. */
#define BURST 64

/* Longest time without an answer of the processes that start. */
#define PATIENCE_MS 60000

static const char EMPTY_KERNEL[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\n    ret;\n}\n";

#define CALLS(X)                                                                                                       \
    X(cuInit)                                                                                                          \
    X(cuDeviceGet)                                                                                                     \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuModuleLoadData)                                                                                                \
    X(cuModuleGetFunction)                                                                                             \
    X(cuLaunchKernel)                                                                                                  \
    X(cuCtxSynchronize)                                                                                                \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemFree_v2)                                                                                                    \
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
#define FIND(name)                                                                                                     \
    if (!(p_##name = (__typeof__(name) *)dlsym(driver, #name))) {                                                      \
        fprintf(stderr, "hetero-timing-cuda: the driver has no " #name "\n");                                          \
        exit(4);                                                                                                       \
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

/* The kernel of the timed calls: set once by main, then only read. */
static CUfunction kernel;

/* A profiler counts the instructions in here (--launches). */
static __attribute__((noinline)) void launch(void)
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
    size_t free_bytes, total_bytes;
    CALL(cuMemGetInfo_v2, &free_bytes, &total_bytes);
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void *demand(void *memory)
{
    if (!memory) {
        perror("hetero-timing-cuda");
        exit(1);
    }
    return memory;
}

static void report(const char *name, double *taken_ns, unsigned sample_count)
{
    qsort(taken_ns, sample_count, sizeof *taken_ns, ascending);
    printf("\"%s\": {\"median\": %.1f, \"p99\": %.1f}", name, taken_ns[sample_count / 2],
           taken_ns[(uint64_t)sample_count * 99 / 100]);
}

/* Times sample_count samples of calls_per_sample calls each, which share the cost of reading the clock. After every
 * BURST calls there is a wait_for_card outside the time. */
static void time_calls(const char *name, unsigned sample_count, unsigned calls_per_sample, void (*call)(void),
                       void (*wait_for_card)(void))
{
    double *taken_ns = demand(calloc(sample_count, sizeof *taken_ns));
    for (unsigned i = 0; i < BURST; i++)
        call();
    wait_for_card();
    for (unsigned i = 0; i < sample_count; i++) {
        uint64_t start_ns = now();
        for (unsigned j = 0; j < calls_per_sample; j++)
            call();
        taken_ns[i] = (double)(now() - start_ns) / calls_per_sample;
        if ((i + 1) * calls_per_sample % BURST == 0)
            wait_for_card();
    }
    wait_for_card();
    fputs(", ", stdout);
    report(name, taken_ns, sample_count);
    free(taken_ns);
}

/* Durations of the driver's initialisation and of the creation of a context. */
static void begin(uint64_t *init_ns, uint64_t *retain_ns)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    open_driver();
    uint64_t start_ns = now();
    CALL(cuInit, 0);
    *init_ns = now() - start_ns;
    CALL(cuDeviceGet, &device, 0);
    start_ns = now();
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    *retain_ns = now() - start_ns;
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, EMPTY_KERNEL);
    CALL(cuModuleGetFunction, &kernel, module, "empty");
}

static int only_launch(unsigned launch_count)
{
    uint64_t init_ns, retain_ns;
    begin(&init_ns, &retain_ns);
    for (unsigned i = 1; i <= launch_count; i++) {
        launch();
        if (i % BURST == 0)
            synchronize();
    }
    puts("{}");
    return 0;
}

static int time_calls_of_all_kinds(unsigned sample_count)
{
    uint64_t init_ns, retain_ns;
    begin(&init_ns, &retain_ns);
    printf("{\"initialise\": {\"median\": %llu}, \"make a context\": {\"median\": %llu}", (unsigned long long)init_ns,
           (unsigned long long)retain_ns);
    time_calls("launch", sample_count, 1, launch, synchronize);
    time_calls("launch, in a row", sample_count / BURST + 1, BURST, launch, synchronize);
    time_calls("launch and synchronise", sample_count, 1, launch_and_synchronize, synchronize);
    time_calls("allocate and free 2 MiB", sample_count / 4 + 1, 1, allocate_and_free, synchronize);
    time_calls("ask for free memory", sample_count, 1, ask_memory, synchronize);
    puts("}");
    return 0;
}

/* A process that --starts starts: allocates memory, reports the time, and holds the memory until all processes have
 * reported. */
static int be_started(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    char end_byte;
    open_driver();
    bool has_memory = p_cuInit(0) == CUDA_SUCCESS && p_cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
                      p_cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
                      p_cuCtxSetCurrent(context) == CUDA_SUCCESS && p_cuMemAlloc_v2(&memory, 1 << 20) == CUDA_SUCCESS;
    uint64_t start_ns = has_memory ? now() : 0;
    return write(STDOUT_FILENO, &start_ns, sizeof start_ns) != sizeof start_ns || read(STDIN_FILENO, &end_byte, 1) != 0;
}

static int time_starts(unsigned process_count)
{
    char *const copy[] = {"hetero-timing-cuda", "--started", NULL};
    extern char **environ;
    int report_pipe[2], hold_pipe[2];
    posix_spawn_file_actions_t files;
    double *taken_ns = demand(calloc(process_count, sizeof *taken_ns));
    unsigned started_count = 0, heard_count = 0, with_memory_count = 0;
    if (pipe2(report_pipe, O_CLOEXEC) || pipe2(hold_pipe, O_CLOEXEC) || posix_spawn_file_actions_init(&files) ||
        posix_spawn_file_actions_adddup2(&files, hold_pipe[0], STDIN_FILENO) ||
        posix_spawn_file_actions_adddup2(&files, report_pipe[1], STDOUT_FILENO))
        demand(NULL);
    uint64_t begin_ns = now(), start_ns;
    for (pid_t child;
         started_count < process_count && !posix_spawn(&child, "/proc/self/exe", &files, NULL, copy, environ);)
        started_count++;
    struct pollfd answer = {.fd = report_pipe[0], .events = POLLIN};
    for (; heard_count < started_count && poll(&answer, 1, PATIENCE_MS) > 0; heard_count++)
        if (read(report_pipe[0], &start_ns, sizeof start_ns) == sizeof start_ns && start_ns != 0)
            taken_ns[with_memory_count++] = (double)(start_ns - begin_ns);
    close(hold_pipe[1]);
    while (wait(NULL) > 0)
        continue;
    if (with_memory_count < process_count) {
        fprintf(stderr, "hetero-timing-cuda: of %u processes %u started and %u got memory\n", process_count,
                started_count, with_memory_count);
        return 1;
    }
    fputs("{", stdout);
    report("start", taken_ns, process_count);
    puts("}");
    return 0;
}

/* Option, its largest value, and what it does. */
static const struct {
    const char *option;
    unsigned long max_count;
    int (*act)(unsigned count);
} ACTS[] = {
    {"--calls", 1000000, time_calls_of_all_kinds},
    {"--starts", 10000, time_starts},
    {"--launches", 1000000, only_launch},
};

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--started") == 0)
        return be_started();
    for (unsigned i = 0; argc == 3 && i < sizeof ACTS / sizeof *ACTS; i++) {
        char *end;
        unsigned long count = strtoul(argv[2], &end, 10);
        if (strcmp(argv[1], ACTS[i].option) == 0 && *end == '\0' && count >= 1 && count <= ACTS[i].max_count)
            return ACTS[i].act((unsigned)count);
    }
    fputs("usage: hetero-timing-cuda --calls N     times N calls of each kind\n"
          "       hetero-timing-cuda --starts N    times N processes that start at once\n"
          "       hetero-timing-cuda --launches N  only launches, for a profiler\n",
          stderr);
    return 2;
}
