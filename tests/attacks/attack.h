/* What the attacks share: the driver by its names, a kernel of a known length, and how they say what they got.
 *
 * A program gets its limits as ATTACK_MEMORY (bytes) and ATTACK_CORE (percent), and ends in `verdict`.
 */
#ifndef HETERO_ATTACK_H
#define HETERO_ATTACK_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)

/* One thread that spins for so many nanoseconds; a simulated card reads its length from the argument. */
static const char attack_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                 ".visible .entry spin(.param .u32 ns)\n{\n"
                                 "    .reg .pred %p;\n    .reg .u64 %t, %end;\n    .reg .u32 %n;\n"
                                 "    ld.param.u32 %n, [ns];\n    cvt.u64.u32 %end, %n;\n"
                                 "    mov.u64 %t, %globaltimer;\n    add.u64 %end, %end, %t;\n"
                                 "loop:\n    mov.u64 %t, %globaltimer;\n    setp.lt.u64 %p, %t, %end;\n"
                                 "    @%p bra loop;\n    ret;\n}\n";

typedef void *(*lookup)(void *, const char *);

static struct {
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*load)(void **, const void *);
    int (*function)(void **, void *, const char *), (*synchronize)(void);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*allocate)(uint64_t *, size_t), (*release)(uint64_t), (*fill)(uint64_t, unsigned char, size_t);
    int (*info)(size_t *, size_t *);
    void *context, *kernel;
} cu __attribute__((unused));

static uint64_t attack_number(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

/* Say what was got, and whether the limit was held. */
static void __attribute__((noreturn, format(printf, 2, 3), unused)) verdict(bool held, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("{\"held\": %s, \"got\": \"%s\"}\n", held ? "true" : "false", text);
    fflush(stdout);
    _exit(0);
}

/* What is told of a call that failed, in place of a line of its own; NULL: nothing. */
static void (*attack_failed)(const char *what, int code);

static void must(int code, const char *what)
{
    if (code == 0)
        return;
    if (attack_failed != NULL)
        attack_failed(what, code);
    printf("{\"failed\": \"%s: %d\"}\n", what, code);
    fflush(stdout);
    _exit(1);
}

/* Take the driver's functions by this lookup. */
static void __attribute__((unused)) driver_by(lookup find)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    must(driver == NULL, "libcuda.so.1");
    *(void **)&cu.init = find(driver, "cuInit");
    *(void **)&cu.retain = find(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&cu.set = find(driver, "cuCtxSetCurrent");
    *(void **)&cu.load = find(driver, "cuModuleLoadData");
    *(void **)&cu.function = find(driver, "cuModuleGetFunction");
    *(void **)&cu.synchronize = find(driver, "cuCtxSynchronize");
    *(void **)&cu.launch = find(driver, "cuLaunchKernel");
    *(void **)&cu.allocate = find(driver, "cuMemAlloc_v2");
    *(void **)&cu.release = find(driver, "cuMemFree_v2");
    *(void **)&cu.fill = find(driver, "cuMemsetD8_v2");
    *(void **)&cu.info = find(driver, "cuMemGetInfo_v2");
}

static void __attribute__((unused)) begin(void)
{
    void *module;
    must(cu.init(0), "cuInit");
    must(cu.retain(&cu.context, 0), "cuDevicePrimaryCtxRetain");
    must(cu.set(cu.context), "cuCtxSetCurrent");
    must(cu.load(&module, attack_ptx), "cuModuleLoadData");
    must(cu.function(&cu.kernel, module, "spin"), "cuModuleGetFunction");
}

static uint64_t __attribute__((unused)) now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int __attribute__((unused)) spin(unsigned ns)
{
    void *parameters[] = {&ns};
    return cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

/* A kernel of as many threads as the card holds: one runs at a time on whatever card. */
static int __attribute__((unused)) fill_the_card(void *stream, unsigned ns)
{
    enum { PROCESSORS = 16, THREADS_OF_ONE = 39 }; /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and so on of cuda.h */
    int (*attribute)(int *, int, int), processors, threads;
    void *parameters[] = {&ns};
    *(void **)&attribute = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetAttribute");
    must(attribute(&processors, PROCESSORS, 0), "cuDeviceGetAttribute");
    must(attribute(&threads, THREADS_OF_ONE, 0), "cuDeviceGetAttribute");
    return cu.launch(cu.kernel, (unsigned)(processors * (threads / 1024)), 1, 1, 1024, 1, 1, 0, stream, parameters,
                     NULL);
}

/* What share of the device kernels of so many ms get, one after the other, in so many seconds: percent. */
static double __attribute__((unused)) share_in(double seconds, unsigned ms)
{
    uint64_t since = now_ns(), now = since;
    unsigned done = 0;
    for (; (double)(now - since) < seconds * 1e9; now = now_ns(), done++) {
        must(spin(ms * 1000000), "cuLaunchKernel");
        must(cu.synchronize(), "cuCtxSynchronize");
    }
    return 100e6 * ms * done / (double)(now - since);
}

/* How many MiB can be had. */
static unsigned __attribute__((unused)) take_memory(void)
{
    uint64_t limit = attack_number("ATTACK_MEMORY"), pointer;
    unsigned mib = 0;
    while (mib < 4 * limit / MIB && cu.allocate(&pointer, 2 * MIB) == 0)
        mib += 2;
    return mib;
}

/* Whether the memory and the share are what the grant says, and what was got. */
static void __attribute__((noreturn, unused)) try_all(void)
{
    unsigned limit = (unsigned)(attack_number("ATTACK_MEMORY") / MIB), core = (unsigned)attack_number("ATTACK_CORE");
    unsigned mib = take_memory();
    uint64_t seconds = attack_number("ATTACK_SECONDS");
    double share = share_in(seconds == 0 ? 1.5 : (double)seconds, 2);
    verdict(mib <= limit && share <= core + 8, "%u of %u MiB, %.0f %% of the device of %u", mib, limit, share, core);
}

/* The directory of the grant's files. */
static const char *__attribute__((unused)) grant_directory(void)
{
    static char path[4096];
    const char *grant = getenv("HETERO_GRANT");
    snprintf(path, sizeof path, "%s", grant == NULL ? "/etc/hetero/grant" : grant);
    *strrchr(path, '/') = '\0';
    return path;
}

/* The descriptors of this process that lead to the grant's files. */
static unsigned __attribute__((unused)) limiters_files(int numbers[64])
{
    unsigned count = 0;
    for (int file = 3; file < 4096; file++) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length < 0)
            continue;
        path[length] = '\0';
        if (strstr(path, grant_directory()) != NULL && count < 64)
            numbers[count++] = file;
    }
    return count;
}

#endif
