/* C2: the first launch comes from a constructor of a library that is being opened, and others from its destructor. The
 * program opens itself as that library: built as one with -DLIBRARY. */
#include "attack.h"

#ifdef LIBRARY
__attribute__((constructor)) static void first(void)
{
    driver_by(dlsym);
    begin();
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
}
__attribute__((destructor)) static void last(void)
{
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
}
#else

static void hangs(int number)
{
    (void)number;
    verdict(false, "a launch in a constructor hangs for ever");
}

int main(int count, char **arguments)
{
    must(count != 2, "the library");
    signal(SIGALRM, hangs);
    alarm(5);
    uint64_t since = now_ns();
    void *library = dlopen(arguments[1], RTLD_NOW);
    must(library == NULL, "dlopen");
    dlclose(library);
    verdict(true, "a launch in a constructor and one in a destructor take %.0f ms", (double)(now_ns() - since) / 1e6);
}
#endif
