/* B: no file can be opened any more before the first launch. Two processes of the grant still have time slices of their
 * own. */
#include "attack.h"

#include <sys/resource.h>

/* What the driver answers when the system refuses it something; the limiter answers it nowhere. */
enum { KERNELS = 120, OPERATING_SYSTEM = 304 };

static struct times {
    uint64_t from, to;
} (*times)[KERNELS];

static void work(struct times *own)
{
    struct rlimit none = {0, 0};
    begin();
    must(setrlimit(RLIMIT_NOFILE, &none), "setrlimit");
    for (unsigned i = 0; i < KERNELS; i++) {
        must(spin(2000000), "cuLaunchKernel");
        own[i].from = now_ns();
        int code = cu.synchronize();
        if (code == OPERATING_SYSTEM)
            verdict(true, "this driver itself cannot work without files: %d", code);
        must(code, "cuCtxSynchronize");
        own[i].to = now_ns();
    }
}

int main(void)
{
    double both = 0, busy = 0;
    driver_by(dlsym);
    times = mmap(NULL, 2 * sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t sibling = fork();
    work(times[sibling == 0]);
    if (sibling == 0)
        _exit(0);
    waitpid(sibling, NULL, 0);
    for (unsigned i = 0; i < KERNELS; i++) {
        busy += (double)(times[0][i].to - times[0][i].from);
        for (unsigned j = 0; j < KERNELS; j++) {
            uint64_t from = times[0][i].from > times[1][j].from ? times[0][i].from : times[1][j].from;
            uint64_t to = times[0][i].to < times[1][j].to ? times[0][i].to : times[1][j].to;
            both += to > from ? (double)(to - from) : 0;
        }
    }
    verdict(both < busy / 5, "in %.0f %% of the time of one the other ran, too", 100 * both / busy);
}
