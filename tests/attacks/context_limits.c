/* Stacks, heaps and printf's queues of contexts. */
#include "memory.h"

/* A kernel that calls malloc, and one that calls printf. */
static const char calling[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".extern .func (.param .b64 r) malloc (.param .b64 n);\n"
    ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);\n"
    ".visible .global .align 1 .b8 text[2] = {10, 0};\n"
    ".visible .entry takes()\n{\n    .reg .b64 %n;\n    mov.u64 %n, 16;\n    {\n    .param .b64 in;\n"
    "    .param .b64 out;\n    st.param.b64 [in], %n;\n    call (out), malloc, (in);\n    }\n    ret;\n}\n"
    ".visible .entry prints()\n{\n    .reg .b64 %f, %z;\n    mov.u64 %f, text;\n    cvta.global.u64 %f, %f;\n"
    "    mov.u64 %z, 0;\n    {\n    .param .b64 a;\n    .param .b64 b;\n    .param .b32 out;\n"
    "    st.param.b64 [a], %f;\n    st.param.b64 [b], %z;\n    call (out), vprintf, (a, b);\n    }\n    ret;\n}\n";

/* Run what takes the heap and the queue. */
static void use_buffers(void)
{
    static const char *const names[] = {"takes", "prints"};
    void *module, *kernel;
    if (cu.load(&module, calling) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < 2; i++)
        if (cu.function(&kernel, module, names[i]) == CUDA_SUCCESS)
            cu.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    cu.synchronize();
}

static void raise_to(CUlimit limit, size_t to)
{
    for (size_t value = 2048; value <= to; value *= 2)
        CU(cuCtxSetLimit)(limit, value);
}

PART(stacks, "stacks")
{
    open_card();
    raise_to(CU_LIMIT_STACK_SIZE, 4096);
    must(spin(1000), "cuLaunchKernel");
    cu.synchronize();
}

PART(heap, "the heap")
{
    open_card();
    raise_to(CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MIB);
    use_buffers();
    take_memory();
}

PART(queue, "printf's queue")
{
    open_card();
    raise_to(CU_LIMIT_PRINTF_FIFO_SIZE, 256 * MIB);
    use_buffers();
    take_memory();
}

/* What a context has of them by itself is not there before it is used. */
PART(by_itself, "buffers nobody set")
{
    open_card();
    take_memory();
    use_buffers();
}

/* Lowered where the driver does not lower it any more. */
PART(lowered, "lowered after they were taken")
{
    open_card();
    raise_to(CU_LIMIT_MALLOC_HEAP_SIZE, 32 * MIB);
    use_buffers();
    for (unsigned i = 0; i < 4; i++) {
        CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 1 * MIB);
        CU(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, 1 * MIB);
        take_memory();
    }
}

PART(lowered_and_raised, "lowered and raised")
{
    open_card();
    for (unsigned i = 0; i < 8; i++) {
        CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 32 * MIB);
        CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB);
    }
    take_memory();
    raise_to(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB);
    use_buffers();
}

int main(void)
{
    run_parts();
}
