/* A launch whose configuration names a stream that is captured when the limiter looks, and another when the driver
 * does. The limiter's first look at it is the one that faults: the stream changes behind that one instruction. */
#include "attack.h"

#include <ucontext.h>

#define KERNEL_MS  100
#define SECONDS    4
#define STEPS      0x100 /* the flag of x86 that traps behind each instruction */
#define PAGE_BYTES 4096

static struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} *launch;
static void *captured, *plain;

static void looked(int number, siginfo_t *unused, void *context)
{
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
    (void)unused;
    must(mprotect(launch, PAGE_BYTES, PROT_READ | PROT_WRITE), "mprotect");
    if (number == SIGTRAP)
        launch->stream = plain;
    *flags = number == SIGTRAP ? *flags & ~STEPS : *flags | STEPS;
}

int main(void)
{
    int (*create)(void **, unsigned), (*capture)(void *, int), (*synchronize)(void *);
    int (*launch_by)(const void *, void *, void **, void **);
    unsigned ns = KERNEL_MS * 1000000, done = 0;
    void *parameters[] = {&ns}, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    double core = (double)attack_number("ATTACK_CORE");
    struct sigaction action = {.sa_sigaction = looked, .sa_flags = SA_SIGINFO};
    driver_by(dlsym);
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    *(void **)&capture = dlsym(driver, "cuStreamBeginCapture_v2");
    *(void **)&synchronize = dlsym(driver, "cuStreamSynchronize");
    *(void **)&launch_by = dlsym(driver, "cuLaunchKernelEx");
    begin();
    must(create(&captured, 1), "cuStreamCreate");
    must(create(&plain, 1), "cuStreamCreate");
    launch = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *launch = (typeof(*launch)){.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = plain};
    must(launch_by(launch, cu.kernel, parameters, NULL), "cuLaunchKernelEx"); /* each function is resolved */
    must(synchronize(plain), "cuStreamSynchronize");
    must(capture(captured, 2), "cuStreamBeginCapture");
    must(sigaction(SIGSEGV, &action, NULL) | sigaction(SIGTRAP, &action, NULL), "sigaction");
    uint64_t since = now_ns(), begun;
    while ((double)(now_ns() - since) < SECONDS * 1e9) {
        launch->stream = captured;
        must(mprotect(launch, PAGE_BYTES, PROT_NONE), "mprotect");
        must(launch_by(launch, cu.kernel, parameters, NULL), "cuLaunchKernelEx");
        begun = now_ns();
        must(synchronize(plain), "cuStreamSynchronize");
        done += (double)(now_ns() - begun) > KERNEL_MS * 5e5;
    }
    double got = 100e6 * KERNEL_MS * done / (double)(now_ns() - since);
    verdict(got <= core + 8, "%.0f %% of the device of %.0f by %u kernels", got, core, done);
}
