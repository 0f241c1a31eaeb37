/* hetero-job-cuda: a small program that keeps a CUDA device busy and reports its rate, for demonstrations, tests and
 * measurements, on real and on simulated cards. It needs the driver only. */
#include "cuda/abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: hetero-job-cuda [options]\n"
    "Keeps a CUDA device busy with kernels of a chosen length; prints one JSON object a second, and one for the\n"
    "whole run.\n"
    "\n"
    "  --seconds S      how long to run (default 5)\n"
    "  --steps N        run so many steps instead, one in flight; the time is from the first launch to the start of\n"
    "                   one more\n"
    "  --warmup S       run this long first, uncounted (default 0)\n"
    "  --kernel-us N    how long one kernel takes on the free card, in microseconds (default 500)\n"
    "  --iterations N   how often its loop turns, instead of measuring that\n"
    "  --in-flight N    how many steps are queued at a time (default 8)\n"
    "  --graph N        a step is one replay of a CUDA graph of N kernels instead of one kernel\n"
    "  --cooperative    a kernel is a cooperative one: a block on every multiprocessor, and barriers of all of them\n"
    "  --cued           run whenever a line of input says until when (seconds of the monotonic clock) and, if it says\n"
    "                   that too, how long to rest between steps; print [[when, steps, seconds they took], ...]\n"
    "  --meet FILE:R/N  after each kernel, wait on the card until N programs have come as far, of which this is the\n"
    "                   R-th, from 0: a collective; FILE is theirs alone, and made if it is not there\n"
    "  --memory SIZE    device memory to hold meanwhile, such as 1GiB\n"
    "  --alloc SIZE     only allocate this much, say how that went and free it; may be given several times\n"
    "  --device I       which device (default 0)\n"
    "\n"
    "Exit status: 0; 1 when the driver refused something; 2 for a wrong option.\n";

/* One warp of dependent multiply-adds: as long as its loop, and no load on memory. Text, so that any driver since
 * Maxwell compiles it for its card. */
static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".shared .u32 sink;\n"
                          ".visible .entry spin(.param .u32 iterations)\n"
                          "{\n"
                          "    .reg .pred %more;\n"
                          "    .reg .u32 %left, %x;\n"
                          "    ld.param.u32 %left, [iterations];\n"
                          "    mov.u32 %x, %tid.x;\n"
                          "loop:\n"
                          "    setp.ne.u32 %more, %left, 0;\n"
                          "    @!%more bra done;\n"
                          "    mad.lo.u32 %x, %x, 1664525, 1013904223;\n"
                          "    sub.u32 %left, %left, 1;\n"
                          "    bra loop;\n"
                          "done:\n"
                          "    st.volatile.shared.u32 [sink], %x;\n" /* so that no compiler finds the loop useless */
                          "    ret;\n"
                          "}\n";

/* Blocks that meet at a barrier after every 30 us of work, about. `before` is the number of barriers in earlier
 * launches. The address of a counter decides how fast a barrier is. So every program uses MEETINGS of them in turn.
 * Without the work between barriers a program made 2 % more steps than the next (H200). */
#define MEETINGS 32u
#define APART    256u /* bytes */
static const char cooperative_ptx[] =
    ".version 6.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".shared .u32 sink;\n"
    ".visible .entry spin(.param .u32 iterations, .param .u64 before, .param .u64 counters)\n"
    "{\n"
    "    .reg .pred %is;\n"
    "    .reg .u32 %left, %all, %blocks, %seen, %lane, %work, %x;\n"
    "    .reg .u64 %counters, %counter, %meeting, %round;\n"
    "    ld.param.u32 %left, [iterations];\n"
    "    ld.param.u64 %meeting, [before];\n"
    "    ld.param.u64 %counters, [counters];\n"
    "    cvta.to.global.u64 %counters, %counters;\n"
    "    mov.u32 %blocks, %nctaid.x;\n"
    "    mov.u32 %x, %ctaid.x;\n"
    "meeting:\n"
    "    setp.eq.u32 %is, %left, 0;\n"
    "    @%is bra done;\n"
    "    mov.u32 %work, 2000;\n"
    "working:\n"
    "    .pragma \"nounroll\";\n"
    "    mad.lo.u32 %x, %x, 1664525, 1013904223;\n"
    "    sub.u32 %work, %work, 1;\n"
    "    setp.ne.u32 %is, %work, 0;\n"
    "    @%is bra working;\n"
    "    st.volatile.shared.u32 [sink], %x;\n" /* so that no compiler finds the work useless */
    "    cvt.u32.u64 %lane, %meeting;\n"
    "    and.b32 %lane, %lane, 31;\n"          /* MEETINGS */
    "    mul.wide.u32 %counter, %lane, 256;\n" /* APART */
    "    add.u64 %counter, %counter, %counters;\n"
    "    shr.u64 %round, %meeting, 5;\n"
    "    cvt.u32.u64 %all, %round;\n" /* arrivals are counted modulo 2^32 */
    "    add.u32 %all, %all, 1;\n"
    "    mul.lo.u32 %all, %all, %blocks;\n"
    "    atom.global.add.u32 %seen, [%counter], 1;\n"
    "waiting:\n"
    "    ld.volatile.global.u32 %seen, [%counter];\n"
    "    sub.u32 %seen, %seen, %all;\n"
    "    setp.lt.s32 %is, %seen, 0;\n"
    "    @%is bra waiting;\n"
    "    sub.u32 %left, %left, 1;\n"
    "    add.u64 %meeting, %meeting, 1;\n"
    "    bra meeting;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

/* The driver, by name: the program builds and starts where there is none. */
#define DRIVER(each)                                                                                                   \
    each(cuInit) each(cuGetErrorName) each(cuDeviceGet) each(cuDevicePrimaryCtxRetain) each(cuCtxSetCurrent)           \
        each(cuModuleLoadData) each(cuModuleGetFunction) each(cuLaunchKernel) each(cuStreamCreate)                     \
            each(cuStreamSynchronize) each(cuEventCreate) each(cuEventDestroy_v2) each(cuEventRecord)                  \
                each(cuEventSynchronize) each(cuEventElapsedTime) each(cuMemAlloc_v2) each(cuMemFree_v2)               \
                    each(cuStreamBeginCapture_v2) each(cuStreamEndCapture) each(cuGraphInstantiate_v2)                 \
                        each(cuGraphLaunch) each(cuDeviceGetAttribute) each(cuLaunchCooperativeKernel)                 \
                            each(cuMemsetD32Async) each(cuMemHostRegister_v2) each(cuMemHostGetDevicePointer_v2)       \
                                each(cuStreamWaitValue32_v2) each(cuStreamWriteValue32_v2)
#define POINTER(name) __typeof__(name) *name;
static struct {
    DRIVER(POINTER)
} cu;

static struct {
    double duration_s, warmup_s, kernel_us;
    unsigned long iterations, max_steps_in_flight, launches_per_graph, device_ordinal, step_count;
    uint64_t memory_bytes, allocation_bytes[16];
    unsigned allocation_count;
    bool is_cooperative, waits_for_cue;
    char *meeting_path; /* file through which programs synchronise; NULL: they do not */
    unsigned rank, rank_count;
} settings = {.duration_s = 5, .kernel_us = 500, .max_steps_in_flight = 8};

static CUstream stream;
static CUfunction spin;
static CUgraphExec graph;
static unsigned iterations;

/* Of cooperative kernels: the counters of arrivals at barriers, the number of barriers launched so far, and the
 * blocks of a launch. */
static CUdeviceptr meeting_counters;
static unsigned long long meeting_count;
static unsigned block_count;

/* Shared by the programs of --meet: the step that each has reached, as host and card address. Each program's word
 * has a cache line of its own in the shared page. */
#define MEET_APART 64u
#define MEET_MOST  64u
static volatile uint32_t *arrivals;
static CUdeviceptr card_arrivals;
static uint32_t own_arrivals;

/* Steps queued and not known to be complete: a ring of settings.max_steps_in_flight events. */
static CUevent *step_ends;
static unsigned long issued_steps, finished_steps;

static void __attribute__((noreturn, format(printf, 2, 3))) fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("hetero-job-cuda: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

static const char *name_of(CUresult error)
{
    const char *name = NULL;
    if (cu.cuGetErrorName(error, &name) != CUDA_SUCCESS || !name)
        name = "an unknown error";
    return name;
}

static void check(CUresult result, const char *call_name)
{
    if (result != CUDA_SUCCESS)
        fail(1, "%s: %s (%d)", call_name, name_of(result), (int)result);
}
#define CALL(name, ...) check(cu.name(__VA_ARGS__), #name)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        fail(1, "%s (is an NVIDIA driver installed?)", dlerror());
#define RESOLVE(name)                                                                                                  \
    if (!(cu.name = (__typeof__(cu.name))dlsym(library, #name)))                                                       \
        fail(1, "libcuda.so.1 has no " #name);
    DRIVER(RESOLVE)
}

static void open_device(void)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, (int)settings.device_ordinal);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, settings.is_cooperative ? cooperative_ptx : ptx);
    CALL(cuModuleGetFunction, &spin, module, "spin");
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (settings.is_cooperative) {
        int processor_count;
        CALL(cuDeviceGetAttribute, &processor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
        block_count = (unsigned)processor_count;
        CALL(cuMemAlloc_v2, &meeting_counters, MEETINGS * APART);
        CALL(cuMemsetD32Async, meeting_counters, 0, MEETINGS * APART / sizeof(unsigned), stream);
    }
}

static void open_meeting(void)
{
    size_t size_bytes = MEET_MOST * MEET_APART;
    int fd = open(settings.meeting_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size_bytes) != 0)
        fail(1, "--meet: %s: %s", settings.meeting_path, strerror(errno));
    void *mapping = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED)
        fail(1, "--meet: %s: %s", settings.meeting_path, strerror(errno));
    close(fd);
    CALL(cuMemHostRegister_v2, mapping, size_bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
    CALL(cuMemHostGetDevicePointer_v2, &card_arrivals, mapping, 0);
    arrivals = mapping;
}

/* The card writes its step, and waits for the other programs' steps. */
static void meet(void)
{
    own_arrivals++;
    CALL(cuStreamWriteValue32_v2, stream, card_arrivals + settings.rank * MEET_APART, own_arrivals, 0);
    for (unsigned rank = 0; rank < settings.rank_count; rank++)
        if (rank != settings.rank)
            CALL(cuStreamWaitValue32_v2, stream, card_arrivals + rank * MEET_APART, own_arrivals,
                 CU_STREAM_WAIT_VALUE_GEQ);
}

/* The other programs no longer wait for this one. */
static void leave_meeting(void)
{
    if (arrivals != NULL)
        arrivals[settings.rank * MEET_APART / sizeof *arrivals] = INT32_MAX;
}

static void launch(void)
{
    void *arguments[] = {&iterations, &meeting_count, &meeting_counters};
    if (settings.is_cooperative)
        CALL(cuLaunchCooperativeKernel, spin, block_count, 1, 1, 1, 1, 1, 0, stream, arguments);
    else
        CALL(cuLaunchKernel, spin, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL);
    meeting_count += iterations;
    if (arrivals != NULL)
        meet();
}

/* Seconds that one kernel of iteration_count iterations takes on the card: the best of a few. Each is launched
 * behind another kernel, so that the card already runs this program when the time starts, and a neighbour's time
 * slice is not counted. */
static double measured(unsigned iteration_count)
{
    CUevent start_event, end_event;
    float best_ms = INFINITY;
    CALL(cuEventCreate, &start_event, CU_EVENT_DEFAULT);
    CALL(cuEventCreate, &end_event, CU_EVENT_DEFAULT);
    iterations = iteration_count;
    for (int i = 0; i < 6; i++) {
        float took_ms;
        launch();
        CALL(cuEventRecord, start_event, stream);
        launch();
        CALL(cuEventRecord, end_event, stream);
        CALL(cuEventSynchronize, end_event);
        CALL(cuEventElapsedTime, &took_ms, start_event, end_event);
        best_ms = took_ms < best_ms ? took_ms : best_ms;
    }
    CALL(cuEventDestroy_v2, start_event);
    CALL(cuEventDestroy_v2, end_event);
    return best_ms / 1e3;
}

/* A kernel's duration is a constant plus a time for each iteration. Two lengths give both, if they are long enough
 * to differ and short enough to end within a driver's time slice of about 2 ms. */
static void calibrate(void)
{
    unsigned short_count = 10;
    double short_s = measured(short_count);
    while (short_s < 50e-6 && short_count < 1000000000)
        short_s = measured(short_count *= 4);
    double iteration_s = (measured(4 * short_count) - short_s) / (3.0 * short_count);
    double count = iteration_s > 0 ? short_count + (settings.kernel_us / 1e6 - short_s) / iteration_s : short_count;
    iterations = count < 1 ? 1 : count > 4e9 ? 4000000000u : (unsigned)(count + 0.5);
}

static void capture(void)
{
    CUgraph captured;
    CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (unsigned long i = 0; i < settings.launches_per_graph; i++)
        launch();
    CALL(cuStreamEndCapture, stream, &captured);
    CALL(cuGraphInstantiate_v2, &graph, captured, NULL, NULL, 0);
}

static void prepare_steps(void)
{
    step_ends = calloc(settings.max_steps_in_flight, sizeof *step_ends);
    for (unsigned long i = 0; step_ends && i < settings.max_steps_in_flight; i++)
        CALL(cuEventCreate, &step_ends[i], CU_EVENT_DISABLE_TIMING);
    if (!step_ends)
        fail(1, "no memory for %lu steps in flight", settings.max_steps_in_flight);
}

/* Fills the queue and waits for its oldest step. */
static void complete_one(void)
{
    for (; issued_steps - finished_steps < settings.max_steps_in_flight; issued_steps++) {
        if (graph)
            CALL(cuGraphLaunch, graph, stream);
        else
            launch();
        CALL(cuEventRecord, step_ends[issued_steps % settings.max_steps_in_flight], stream);
    }
    CALL(cuEventSynchronize, step_ends[finished_steps++ % settings.max_steps_in_flight]);
}

static void empty_queue(void)
{
    CALL(cuStreamSynchronize, stream);
    issued_steps = finished_steps = 0;
}

/* Runs for the duration; reports each second and the whole if every_second is set. */
static void run(double duration_s, bool every_second)
{
    unsigned long reported_steps = 0;
    double start_s = now(), last_s = start_s;
    unsigned second = 0;
    while (last_s - start_s < duration_s) {
        complete_one();
        last_s = now();
        for (; every_second && last_s - start_s >= second + 1 && second + 1 <= duration_s;
             reported_steps = finished_steps) {
            printf("{\"second\": %u, \"steps\": %lu}\n", ++second, finished_steps - reported_steps);
            fflush(stdout);
        }
    }
    double took_s = last_s - start_s;
    if (every_second)
        printf("{\"steps\": %lu, \"seconds\": %.3f, \"rate\": %.3f, \"memory\": %llu, \"iterations\": %u}\n",
               finished_steps, took_s, (double)finished_steps / took_s, (unsigned long long)settings.memory_bytes,
               iterations);
    empty_queue();
}

/* Runs the steps one after the other, and reports the time until one more step has started: by then all that a
 * limiter does for each step is done. */
static void run_steps(unsigned long step_count)
{
    double start_s = 0;
    for (unsigned long step = 0; step <= step_count; step++) {
        if (graph)
            CALL(cuGraphLaunch, graph, stream);
        else
            launch();
        start_s = step == 0 ? now() : start_s;
        if (step < step_count)
            CALL(cuStreamSynchronize, stream);
    }
    double took_s = now() - start_s;
    printf("{\"steps\": %lu, \"seconds\": %.3f, \"rate\": %.3f, \"iterations\": %u}\n", step_count, took_s,
           (double)step_count / took_s, iterations);
    empty_queue();
}

/* Runs until the monotonic clock is at until_s. Reports the steps at the end, since a pipe that is not read yet must
 * not block them. */
static void run_until(double until_s, double rest_s)
{
    struct {
        double end_s, duration_s;
    } *steps = NULL;
    size_t step_count = 0, capacity = 0;
    double start_s = now(), begun_s = start_s, last_s = start_s;
    while (last_s < until_s) {
        complete_one();
        last_s = now();
        if (step_count == capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            steps = realloc(steps, capacity * sizeof *steps);
            if (!steps)
                fail(1, "no memory to remember %zu steps", capacity);
        }
        steps[step_count].end_s = last_s;
        steps[step_count++].duration_s = last_s - begun_s;
        begun_s = last_s;
        if (rest_s > 0) {
            struct timespec time = {(time_t)rest_s, (long)((rest_s - floor(rest_s)) * 1e9)};
            nanosleep(&time, NULL);
            begun_s = now();
        }
    }
    empty_queue();
    printf("[[%.9f, 0, 0]", start_s);
    for (size_t i = 0; i < step_count; i++)
        printf(", [%.9f, 1, %.9f]", steps[i].end_s, steps[i].duration_s);
    puts("]");
    fflush(stdout);
    free(steps);
}

static void serve(void)
{
    char line[128];
    puts("{\"ready\": true}");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double until_s, rest_s = 0;
        if (sscanf(line, "%lf %lf", &until_s, &rest_s) < 1)
            fail(2, "--cued: expected a moment and perhaps a rest, both in seconds, not '%s'", line);
        run_until(until_s, rest_s);
    }
}

static bool allocate_each(void)
{
    bool is_any_refused = false;
    for (unsigned i = 0; i < settings.allocation_count; i++) {
        CUdeviceptr pointer;
        CUresult result = cu.cuMemAlloc_v2(&pointer, settings.allocation_bytes[i]);
        if (result == CUDA_SUCCESS) {
            printf("{\"allocated\": %llu}\n", (unsigned long long)settings.allocation_bytes[i]);
            CALL(cuMemFree_v2, pointer);
        } else {
            printf("{\"error\": \"%s\", \"code\": %d}\n", name_of(result), (int)result);
            is_any_refused = true;
        }
        fflush(stdout);
    }
    return is_any_refused;
}

static uint64_t size_of(const char *option, const char *text)
{
    static const struct {
        const char *name;
        double scale;
    } units[] = {{"", 1},        {"B", 1},        {"K", 1e3},      {"M", 1e6},     {"G", 1e9},
                 {"KB", 1e3},    {"MB", 1e6},     {"GB", 1e9},     {"Ki", 0x1p10}, {"Mi", 0x1p20},
                 {"Gi", 0x1p30}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
    char *end;
    double value = strtod(text, &end);
    for (unsigned i = 0; end != text && value > 0 && i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name))
            return (uint64_t)(value * units[i].scale);
    fail(2, "--%s: expected a size such as 1GiB or 500MB, not '%s'", option, text);
}

static double positive(const char *option, const char *text, double min_value)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= min_value) || isinf(value))
        fail(2, "--%s: expected a number of at least %g, not '%s'", option, min_value, text);
    return value;
}

static unsigned long whole(const char *option, const char *text, double min_value)
{
    double value = positive(option, text, min_value);
    if (value != floor(value) || value > 4e9)
        fail(2, "--%s: expected a whole number, not '%s'", option, text);
    return (unsigned long)value;
}

static void read_meeting(char *meeting_setting)
{
    char *colon = strrchr(meeting_setting, ':'), trailing_character;
    if (colon == NULL || colon == meeting_setting ||
        sscanf(colon, ":%u/%u%c", &settings.rank, &settings.rank_count, &trailing_character) != 2 ||
        settings.rank >= settings.rank_count || settings.rank_count > MEET_MOST)
        fail(2, "--meet: expected a file and one of at most %u programs such as /tmp/ours:0/2, not '%s'", MEET_MOST,
             meeting_setting);
    *colon = '\0';
    settings.meeting_path = meeting_setting;
}

static void read_options(int count, char **arguments)
{
    static const struct option options[] = {
        {"seconds", 1, NULL, 's'},   {"steps", 1, NULL, 't'},      {"warmup", 1, NULL, 'w'},
        {"kernel-us", 1, NULL, 'k'}, {"iterations", 1, NULL, 'n'}, {"in-flight", 1, NULL, 'f'},
        {"graph", 1, NULL, 'g'},     {"memory", 1, NULL, 'm'},     {"alloc", 1, NULL, 'a'},
        {"device", 1, NULL, 'd'},    {"help", 0, NULL, 'h'},       {"cooperative", 0, NULL, 'c'},
        {"cued", 0, NULL, 'q'},      {"meet", 1, NULL, 'M'},       {0}};
    int index = 0, option;
    opterr = 0;
    while ((option = getopt_long(count, arguments, "h", options, &index)) != -1) {
        const char *name = option == '?' ? "" : options[index].name;
        switch (option) {
        case 's': settings.duration_s = positive(name, optarg, 0); break;
        case 't': settings.step_count = whole(name, optarg, 1); break;
        case 'w': settings.warmup_s = positive(name, optarg, 0); break;
        case 'k': settings.kernel_us = positive(name, optarg, 1); break;
        case 'n': settings.iterations = whole(name, optarg, 1); break;
        case 'f': settings.max_steps_in_flight = whole(name, optarg, 1); break;
        case 'g': settings.launches_per_graph = whole(name, optarg, 1); break;
        case 'm': settings.memory_bytes = size_of(name, optarg); break;
        case 'a':
            if (settings.allocation_count == sizeof settings.allocation_bytes / sizeof *settings.allocation_bytes)
                fail(2, "--alloc: given too often");
            settings.allocation_bytes[settings.allocation_count++] = size_of(name, optarg);
            break;
        case 'd': settings.device_ordinal = whole(name, optarg, 0); break;
        case 'c': settings.is_cooperative = true; break;
        case 'q': settings.waits_for_cue = true; break;
        case 'M': read_meeting(optarg); break;
        case 'h': fputs(help, stdout); exit(0);
        default: fail(2, "%s: unknown, or without its value (--help lists the options)", arguments[optind - 1]);
        }
    }
    if (settings.meeting_path != NULL && settings.launches_per_graph)
        fail(2, "--meet and --graph: programs meet outside of graphs");
    if (settings.launches_per_graph && settings.is_cooperative)
        fail(2, "--graph and --cooperative: a step is one or the other");
    if (optind < count)
        fail(2, "'%s': not an option (--help lists them)", arguments[optind]);
}

int main(int count, char **arguments)
{
    CUdeviceptr held_memory = 0;
    read_options(count, arguments);
    open_driver();
    open_device();
    if (settings.allocation_count)
        return allocate_each();
    if (settings.memory_bytes) {
        CUresult result = cu.cuMemAlloc_v2(&held_memory, settings.memory_bytes);
        if (result != CUDA_SUCCESS)
            fail(1, "--memory: cuMemAlloc of %llu bytes: %s", (unsigned long long)settings.memory_bytes,
                 name_of(result));
    }
    if (settings.iterations)
        iterations = (unsigned)settings.iterations;
    else
        calibrate();
    if (settings.meeting_path != NULL)
        open_meeting(); /* after the measurement */
    if (settings.launches_per_graph)
        capture();
    prepare_steps();
    if (settings.warmup_s > 0)
        run(settings.warmup_s, false);
    if (settings.waits_for_cue)
        serve();
    else if (settings.step_count)
        run_steps(settings.step_count);
    else
        run(settings.duration_s, true);
    leave_meeting();
    return 0;
}
