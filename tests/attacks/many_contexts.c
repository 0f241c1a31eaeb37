/* Contexts, each of which takes more of a card than most programs: of many processes, of one, and made anew. */
#include "memory.h"

#define CONTEXTS 24

/* In a process of its own, which ends with the part: whether it has a context. */
static bool child_has_context(void)
{
    int answers[2];
    char has_context = 0;
    must(pipe(answers), "pipe");
    pid_t child = fork();
    must(child < 0, "fork");
    if (child == 0) {
        void *context;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        has_context = cu.init(0) == 0 && cu.retain(&context, 0) == 0;
        must(write(answers[1], &has_context, 1) != 1, "write");
        while (has_context)
            pause();
        _exit(0);
    }
    close(answers[1]);
    must(read(answers[0], &has_context, 1) != 1, "read");
    close(answers[0]);
    return has_context;
}

PART(of_processes, "a context of each of 24 processes")
{
    driver_by(dlsym);
    for (unsigned i = 0; i < CONTEXTS; i++)
        child_has_context();
}

PART(of_one, "24 contexts of one process")
{
    CUcontext context;
    open_card();
    for (unsigned i = 0; i < CONTEXTS; i++)
        CU(cuCtxCreate_v2)(&context, 0, 0);
}

/* The charge of the last context that ends is kept for one more, and no more. */
PART(made_anew, "contexts that end, and more of them")
{
    CUcontext contexts[CONTEXTS];
    open_card();
    for (unsigned round = 0; round < 3; round++) {
        unsigned count = 0;
        while (count < CONTEXTS && CU(cuCtxCreate_v2)(&contexts[count], 0, 0) == CUDA_SUCCESS)
            count++;
        while (round < 2 && count > 0)
            CU(cuCtxDestroy_v2)(contexts[--count]);
    }
    cu.set(cu.context);
    take_memory();
}

int main(void)
{
    run_parts();
}
