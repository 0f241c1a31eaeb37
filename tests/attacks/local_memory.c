/* Kernels whose threads have large arrays of their own, which the driver holds for all threads of the card at once. */
#include "memory.h"

/* A multiple of what a context has of it by itself, so small that 132 x 2048 threads have 64 MiB beyond that. */
#define ARRAY(bytes)                                                                                                   \
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry spills(.param .u64 to)\n{\n"                       \
    "    .local .align 8 .b8 mine[" #bytes "];\n    .reg .b32 %r<3>;\n    .reg .b64 %a<4>;\n    .reg .pred %p;\n"      \
    "    ld.param.u64 %a0, [to];\n    mov.u32 %r0, %clock;\n    and.b32 %r0, %r0, " #bytes " - 8;\n"                   \
    "    cvt.u64.u32 %a1, %r0;\n    mov.u64 %a2, mine;\n    add.u64 %a2, %a2, %a1;\n    st.local.u32 [%a2], %r0;\n"    \
    "    ld.local.u32 %r1, [%a2];\n    setp.eq.u64 %p, %a0, 0;\n    @%p bra done;\n    st.global.u32 [%a0], %r1;\n"    \
    "done:\n    ret;\n}\n"
static const char *const texts[] = {ARRAY(4096), ARRAY(32768), ARRAY(131072)};
#define TEXTS (sizeof texts / sizeof *texts)

static void run(CUfunction function)
{
    CUdeviceptr none = 0;
    void *parameters[] = {&none};
    CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    cu.synchronize();
}

static void of_modules(void)
{
    CUmodule module;
    CUfunction function;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuModuleLoadData)(&module, texts[i]) == CUDA_SUCCESS &&
            CU(cuModuleGetFunction)(&function, module, "spills") == CUDA_SUCCESS)
            run(function);
}

static void of_libraries(void)
{
    CUlibrary library;
    CUkernel kernel;
    open_card();
    for (unsigned i = 0; i < TEXTS; i++)
        if (CU(cuLibraryLoadData)(&library, texts[i], NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS &&
            CU(cuLibraryGetKernel)(&kernel, library, "spills") == CUDA_SUCCESS)
            run((CUfunction)kernel);
}

/* What fits is had first, and then all else is taken. */
static void then_all_else(void)
{
    CUmodule module;
    CUfunction function;
    open_card();
    bool had = CU(cuModuleLoadData)(&module, texts[0]) == CUDA_SUCCESS &&
               CU(cuModuleGetFunction)(&function, module, "spills") == CUDA_SUCCESS;
    take_memory();
    if (had)
        run(function);
}

int main(void)
{
    static const struct part parts[] = {
        {"kernels of modules", of_modules},
        {"kernels of libraries", of_libraries},
        {"kernels, and then all else", then_all_else},
    };
    RUN_PARTS(parts);
}
