/* Contexts of all kinds, which end while memory lives, and memory that lives while they end. Each part has two. */
#include "memory.h"

#define TAKEN (8 * MIB)

/* In place of the current one, so that the stack of contexts does not grow. */
static CUcontext another(void)
{
    CUcontext context;
    must((int)CU(cuCtxCreate_v2)(&context, 0, 0), "cuCtxCreate");
    must((int)CU(cuCtxPopCurrent_v2)(&context), "cuCtxPopCurrent");
    must(cu.set(context), "cuCtxSetCurrent");
    return context;
}

static void take_all(void)
{
    uint64_t pointer;
    for (unsigned i = 0; i < times(TAKEN) && cu.allocate(&pointer, TAKEN) == 0; i++)
        ;
}

/* A piece of each, whose first block is part of the context. */
PART(first_blocks, "first blocks")
{
    uint64_t pointer;
    open_card();
    CUcontext other = another();
    for (unsigned i = 0; i < 2; i++) {
        cu.set(i == 0 ? cu.context : other);
        for (unsigned j = 0; j < times(512 * 1024) && cu.allocate(&pointer, 512 * 1024) == 0; j++)
            ;
    }
}

/* Ended and made again, with memory left in the first one. */
PART(made_again, "contexts made again")
{
    open_card();
    for (unsigned i = 0; i < 4; i++) {
        CUcontext other = another();
        cu.set(cu.context);
        take_all();
        CU(cuCtxDestroy_v2)(other);
    }
    another();
    take_all();
}

/* What counts as its end is not: it is attached to once more. */
PART(detached, "attached and detached")
{
    open_card();
    CUcontext other = another(), same;
    for (unsigned i = 0; i < 4; i++) {
        if (CU(cuCtxAttach)(&same, 0) != CUDA_SUCCESS)
            break;
        take_all();
        CU(cuCtxDetach)(other);
    }
}

/* What is not the context's end frees nothing. */
PART(retained_twice, "retained and released")
{
    CUcontext same;
    open_card();
    another();
    cu.set(cu.context);
    for (unsigned i = 0; i < 4; i++) {
        must(CU(cuDevicePrimaryCtxRetain)(&same, 0), "cuDevicePrimaryCtxRetain");
        take_all();
        CU(cuDevicePrimaryCtxRelease_v2)(0);
    }
}

/* Arrays of modules beside contexts that end, with modules of their own. */
PART(with_modules, "modules")
{
    static const char array[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .b8 a[8388608];\n.visible .entry touch() { ret; }\n";
    void *module;
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUcontext other = another();
        cu.load(&module, array);
        cu.set(cu.context);
        cu.load(&module, array);
        CU(cuCtxDestroy_v2)(other);
    }
    another();
}

/* Stacks, which take memory at once, of contexts that end: 33 MiB each on a card of 132 multiprocessors. */
PART(with_stacks, "stacks")
{
    open_card();
    for (unsigned i = 0; i < 8; i++) {
        CUcontext other = another();
        CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 1024 + 128);
        cu.set(cu.context);
        CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 1024 + 128 * (i % 4));
        if (i < 7)
            CU(cuCtxDestroy_v2)(other);
    }
    take_memory();
}

struct resource { /* CUdevResource of cuda.h */
    char bytes[144];
};

/* A green context's memory is that of its card's context, and does not end with it. */
PART(green, "green contexts")
{
    CUresult (*of_card)(CUdevice, struct resource *, int) = driver_function("cuDeviceGetDevResource");
    CUresult (*split)(struct resource *, unsigned *, const struct resource *, struct resource *, unsigned,
                      unsigned) = driver_function("cuDevSmResourceSplitByCount");
    CUresult (*describe)(CUdevResourceDesc *, struct resource *,
                         unsigned) = driver_function("cuDevResourceGenerateDesc");
    CUresult (*as_context)(CUcontext *, CUgreenCtx) = driver_function("cuCtxFromGreenCtx");
    struct resource all, part, rest;
    unsigned groups = 1;
    CUdevResourceDesc description;
    CUgreenCtx parts;
    CUcontext context;
    const int processors = 1;
    open_card();
    another();
    if (of_card(0, &all, processors) != CUDA_SUCCESS || split(&part, &groups, &all, &rest, 0, 16) != CUDA_SUCCESS ||
        describe(&description, &part, 1) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < 4; i++) {
        if (CU(cuGreenCtxCreate)(&parts, description, 0, 1) != CUDA_SUCCESS)
            return;
        if (as_context(&context, parts) == CUDA_SUCCESS && cu.set(context) == 0)
            take_all();
        CU(cuGreenCtxDestroy)(parts);
    }
}

static const char library_text[] = ".version 6.4\n.target sm_50\n.address_size 64\n"
                                   ".visible .global .b8 a[25165824];\n.visible .entry touch() { ret; }\n";

static void use_library(CUlibrary library)
{
    CUkernel kernel;
    if (CU(cuLibraryGetKernel)(&kernel, library, "touch") == CUDA_SUCCESS)
        CU(cuLaunchKernel)((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static CUlibrary library_of(const char *text)
{
    CUlibrary library = NULL;
    CU(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0);
    return library;
}

/* A library is in each context in which its kernel is launched. */
PART(libraries, "a library in several")
{
    open_card();
    CUcontext other = another();
    for (unsigned i = 0; i < 4; i++) {
        CUlibrary library = library_of(library_text);
        cu.set(cu.context);
        use_library(library);
        cu.set(other);
        use_library(library);
    }
}

/* It outlives the context that it was loaded in. */
PART(libraries_outlive, "libraries of one that ended")
{
    CUlibrary loaded[8];
    open_card();
    CUcontext other = another();
    for (unsigned i = 0; i < 8; i++)
        loaded[i] = library_of(library_text);
    CU(cuCtxDestroy_v2)(other);
    cu.set(cu.context);
    for (unsigned i = 0; i < 8; i++)
        use_library(loaded[i]);
}

int main(void)
{
    run_parts();
}
