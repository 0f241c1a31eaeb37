/* Processes of one grant, each with one kernel of so many milliseconds: one_kernel PROCESSES MILLISECONDS [WRITES].
 *
 * With WRITES the first of them writes meanwhile into the grant's account that it is owed device time, as any may.
 */
#include "attack.h"

/* Its length is the rack's of a simulated card: a millisecond for each of the argument. */
static const char milliseconds_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                       ".visible .entry milliseconds(.param .u32 count)\n{\n    ret;\n}\n";

#define BALANCE_AT (128 + 40) /* of struct hetero_region (limiters/core/region.h): that of the first device */

static void write_balance(uint64_t milliseconds)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/usage", grant_directory());
    int file = open(path, O_RDWR);
    volatile int64_t *balance_ns = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(balance_ns == MAP_FAILED, path);
    for (uint64_t since = now_ns(); now_ns() - since < milliseconds * 1000000u; usleep(500))
        balance_ns[BALANCE_AT / 8] = 900000000;
}

int main(int count, char **words)
{
    unsigned processes = (unsigned)atoi(words[1]), milliseconds = (unsigned)atoi(words[2]);
    for (unsigned process = 0; process < processes; process++) {
        if (fork() != 0)
            continue;
        void *module, *kernel, *parameters[] = {&milliseconds};
        driver_by((lookup)dlsym);
        begin();
        must(cu.load(&module, milliseconds_ptx), "cuModuleLoadData");
        must(cu.function(&kernel, module, "milliseconds"), "cuModuleGetFunction");
        must(cu.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
        must(cu.synchronize(), "cuCtxSynchronize");
        _exit(0);
    }
    if (count > 3)
        write_balance(milliseconds);
    while (wait(NULL) > 0)
        ;
    return 0;
}
