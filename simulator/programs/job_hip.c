/* hetero-job-hip: a small program that keeps a card busy through HIP and reports its rate, for demonstrations. It
 * needs the HIP runtime only, AMD's or Hygon's, which compiles its kernel. */
#include "hip/abi.h"

#include <dlfcn.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: hetero-job-hip [options]\n"
    "Keeps a card busy with kernels; prints one JSON object a second, and one for the whole run.\n"
    "\n"
    "  --seconds S    how long to run (default 5)\n"
    "  --warmup S     run this long first, uncounted (default 0)\n"
    "  --kernel-us N  how long one kernel takes on the free card, in microseconds (default 5000)\n"
    "  --memory SIZE  device memory to hold meanwhile, such as 64MiB\n"
    "  --alloc SIZE   only allocate this much, say how that went and free it\n"
    "\n"
    "Exit status: 0; 1 when the runtime refused something; 2 for a wrong option, or without a runtime.\n";

/* The limiter neither answers nor calls these. */
hipError_t hipInit(unsigned flags);
const char *hipGetErrorName(hipError_t error);
hipError_t hipSetDeviceFlags(unsigned flags);
hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name);
hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags);
hipError_t hipEventSynchronize(hipEvent_t event);
int hiprtcCreateProgram(void **program, const char *source, const char *name, int count, const char **headers,
                        const char **names);
int hiprtcCompileProgram(void *program, int count, const char **options);
int hiprtcGetCodeSize(void *program, size_t *size);
int hiprtcGetCode(void *program, char *code);

#define BLOCKING_SYNC 4u /* hipDeviceScheduleBlockingSync */
#define IN_FLIGHT     8u

/* A clock of 100 MHz that all cards since gfx9 have. */
static const char source[] = "extern \"C\" __global__ void spin(unsigned long long us)\n"
                             "{\n"
                             "    unsigned long long until = __builtin_amdgcn_s_memrealtime() + 100 * us;\n"
                             "    while (__builtin_amdgcn_s_memrealtime() < until)\n"
                             "        ;\n"
                             "}\n";

#define RUNTIME(each)                                                                                                  \
    each(hipInit) each(hipGetErrorName) each(hipSetDeviceFlags) each(hipModuleLoadData) each(hipModuleGetFunction)     \
        each(hipStreamCreateWithFlags) each(hipStreamSynchronize) each(hipEventCreateWithFlags) each(hipEventRecord)   \
            each(hipEventSynchronize) each(hipMalloc) each(hipFree) each(hipModuleLaunchKernel)                        \
                each(hiprtcCreateProgram) each(hiprtcCompileProgram) each(hiprtcGetCodeSize) each(hiprtcGetCode)
#define POINTER(name) __typeof__(name) *name;
static struct {
    RUNTIME(POINTER)
} hip;

static struct {
    double duration_s, warmup_s;
    unsigned long long kernel_us, memory_bytes, allocation_bytes;
} settings = {.duration_s = 5, .kernel_us = 5000};

static hipStream_t stream;
static hipFunction_t spin;
static hipEvent_t step_ends[IN_FLIGHT];

static void __attribute__((noreturn, format(printf, 2, 3))) fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("hetero-job-hip: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

static void check(hipError_t result, const char *call_name)
{
    if (result != hipSuccess)
        fail(1, "%s: %s (%d)", call_name, hip.hipGetErrorName(result), (int)result);
}
#define CALL(name, ...) check(hip.name(__VA_ARGS__), #name)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* From ROCm 7 on hiprtc is a library of its own; before, it is part of the runtime, too. */
static void *symbol(void *library, void *compiler, const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL && compiler != NULL)
        function = dlsym(compiler, name);
    if (function == NULL)
        fail(2, "the HIP runtime has no %s", name);
    return function;
}

static void open_runtime(void)
{
    static const char *const names[] = {"libgalaxyhip.so.5", "libamdhip64.so.7", "libamdhip64.so.6",
                                        "libamdhip64.so.5"};
    void *library = NULL, *compiler = dlopen("libhiprtc.so.7", RTLD_NOW);
    for (unsigned i = 0; i < sizeof names / sizeof *names && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW);
    if (library == NULL)
        fail(2, "no HIP runtime is installed: neither libamdhip64.so.5, .6 or .7 nor libgalaxyhip.so.5 (Debian: "
                "libamdhip64-5)");
#define RESOLVE(name) hip.name = (__typeof__(hip.name))symbol(library, compiler, #name);
    RUNTIME(RESOLVE)
}

static void open_card(void)
{
    void *program;
    hipModule_t module;
    size_t code_bytes = 0;
    CALL(hipInit, 0);
    CALL(hipSetDeviceFlags, BLOCKING_SYNC);
    if (settings.allocation_bytes)
        return;
    if (hip.hiprtcCreateProgram(&program, source, "spin", 0, NULL, NULL) != 0 ||
        hip.hiprtcCompileProgram(program, 0, NULL) != 0 || hip.hiprtcGetCodeSize(program, &code_bytes) != 0)
        fail(1, "the runtime cannot compile a kernel");
    char *code = malloc(code_bytes);
    if (code == NULL || hip.hiprtcGetCode(program, code) != 0)
        fail(1, "the runtime's compiler gave no code");
    CALL(hipModuleLoadData, &module, code);
    CALL(hipModuleGetFunction, &spin, module, "spin");
    CALL(hipStreamCreateWithFlags, &stream, 1);
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        CALL(hipEventCreateWithFlags, &step_ends[i], hipEventDisableTiming | 1);
}

/* Runs for the duration with some kernels in flight; reports each second, and the whole if prints_seconds is set. */
static void run(double duration_s, bool prints_seconds)
{
    unsigned long long finished_steps = 0, issued_steps = 0, reported_steps = 0;
    void *arguments[] = {&settings.kernel_us};
    double start_s = now(), last_s = start_s;
    for (unsigned second = 0; last_s - start_s < duration_s; last_s = now()) {
        for (; issued_steps - finished_steps < IN_FLIGHT; issued_steps++) {
            CALL(hipModuleLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
            CALL(hipEventRecord, step_ends[issued_steps % IN_FLIGHT], stream);
        }
        CALL(hipEventSynchronize, step_ends[finished_steps++ % IN_FLIGHT]);
        for (; prints_seconds && last_s - start_s >= second + 1; reported_steps = finished_steps) {
            printf("{\"second\": %u, \"steps\": %llu}\n", ++second, finished_steps - reported_steps);
            fflush(stdout);
        }
    }
    if (prints_seconds)
        printf("{\"steps\": %llu, \"seconds\": %.3f, \"rate\": %.3f, \"memory\": %llu}\n", finished_steps,
               last_s - start_s, (double)finished_steps / (last_s - start_s), settings.memory_bytes);
    CALL(hipStreamSynchronize, stream);
}

static int allocate(unsigned long long bytes)
{
    void *pointer;
    hipError_t result = hip.hipMalloc(&pointer, bytes);
    if (result == hipSuccess) {
        printf("{\"allocated\": %llu}\n", bytes);
        CALL(hipFree, pointer);
    } else {
        printf("{\"error\": \"%s\", \"code\": %d}\n", hip.hipGetErrorName(result), (int)result);
    }
    return result != hipSuccess;
}

static unsigned long long size_of(const char *option, const char *text)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB"};
    char *end;
    double value = strtod(text, &end);
    for (unsigned i = 0; end != text && value > 0 && i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i]))
            return (unsigned long long)(value * (double)(1ull << 10 * i));
    fail(2, "--%s: expected a size such as 64MiB, not '%s'", option, text);
}

static double number(const char *option, const char *text, double min_value)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= min_value) || value > 1e9)
        fail(2, "--%s: expected a number of at least %g, not '%s'", option, min_value, text);
    return value;
}

static void read_options(int count, char **arguments)
{
    static const struct option options[] = {{"seconds", 1, NULL, 's'},
                                            {"warmup", 1, NULL, 'w'},
                                            {"kernel-us", 1, NULL, 'k'},
                                            {"memory", 1, NULL, 'm'},
                                            {"alloc", 1, NULL, 'a'},
                                            {"help", 0, NULL, 'h'},
                                            {0}};
    int index = 0, option;
    opterr = 0;
    while ((option = getopt_long(count, arguments, "h", options, &index)) != -1)
        switch (option) {
        case 's': settings.duration_s = number("seconds", optarg, 0); break;
        case 'w': settings.warmup_s = number("warmup", optarg, 0); break;
        case 'k': settings.kernel_us = (unsigned long long)number("kernel-us", optarg, 1); break;
        case 'm': settings.memory_bytes = size_of("memory", optarg); break;
        case 'a': settings.allocation_bytes = size_of("alloc", optarg); break;
        case 'h': fputs(help, stdout); exit(0);
        default: fail(2, "%s: unknown, or without its value (--help lists the options)", arguments[optind - 1]);
        }
    if (optind < count)
        fail(2, "'%s': not an option (--help lists them)", arguments[optind]);
}

int main(int count, char **arguments)
{
    void *held_memory;
    read_options(count, arguments);
    open_runtime();
    open_card();
    if (settings.allocation_bytes)
        return allocate(settings.allocation_bytes);
    if (settings.memory_bytes)
        CALL(hipMalloc, &held_memory, settings.memory_bytes);
    if (settings.warmup_s > 0)
        run(settings.warmup_s, false);
    run(settings.duration_s, true);
    return 0;
}
