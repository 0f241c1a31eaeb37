/* Blocks that live on where their handle is gone: in descriptors, imports, mappings, other processes. */
#include "memory.h"

static void in_descriptors(void)
{
    CUmemGenericAllocationHandle handle;
    open_card();
    for (unsigned i = 0; i < times(BLOCK) && exported(BLOCK, &handle) >= 0; i++)
        CU(cuMemRelease)(handle);
}

static void imported_here(void)
{
    CUmemGenericAllocationHandle handle, again;
    open_card();
    int file;
    for (unsigned i = 0; i < times(BLOCK) && (file = exported(BLOCK, &handle)) >= 0; i++) {
        import(file, &again);
        CU(cuMemRelease)(handle);
        close(file);
    }
}

/* Neither handle is left, nor a descriptor. */
static void mapped_from_import(void)
{
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr address;
    open_card();
    int file;
    for (unsigned i = 0; i < times(BLOCK) && (file = exported(BLOCK, &handle)) >= 0; i++) {
        import(file, &again);
        close(file);
        CU(cuMemRelease)(handle);
        map(again, BLOCK, &address);
        CU(cuMemRelease)(again);
    }
}

/* A descriptor of addresses may keep what was freed there. */
static void address_ranges(void)
{
    uint64_t pointer;
    int file;
    open_card();
    for (unsigned i = 0; i < times(BLOCK) && cu.allocate(&pointer, BLOCK) == 0; i++) {
        CU(cuMemGetHandleForAddressRange)(&file, pointer, BLOCK, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        cu.release(pointer);
    }
}

/* As many at once as fit, then as many more. */
static void all_then_all(void)
{
    CUmemGenericAllocationHandle handles[64];
    open_card();
    for (unsigned round = 0; round < 4; round++) {
        unsigned count = 0;
        while (count < 64 && exported(BLOCK, &handles[count]) >= 0)
            count++;
        for (unsigned i = 0; i < count; i++)
            CU(cuMemRelease)(handles[i]);
    }
}

/* A child takes what it is sent, maps it if it has a card, and keeps it until this process ends. */
static void given_to_child(bool with_card)
{
    int pair[2], file;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        if (with_card)
            open_card();
        while ((file = receive_file(pair[1])) >= 0)
            if (with_card && import(file, &handle) == CUDA_SUCCESS) {
                map(handle, BLOCK, &address);
                close(file);
            }
        hold();
        _exit(0);
    }
    close(pair[1]);
    open_card();
    for (unsigned i = 0; i < times(BLOCK) && (file = exported(BLOCK, &handle)) >= 0; i++) {
        send_file(pair[0], file);
        CU(cuMemRelease)(handle);
        close(file);
    }
    close(pair[0]);
    waitpid(child, NULL, 0);
}

static void imported_by_child(void)
{
    given_to_child(true);
}

static void descriptors_of_child(void)
{
    given_to_child(false);
}

int main(void)
{
    static const struct part parts[] = {
        {"exported and released", in_descriptors},
        {"imported in its own process", imported_here},
        {"mapped from the import", mapped_from_import},
        {"all, then all again", all_then_all},
        {"descriptors of addresses", address_ranges},
        {"imported by a child", imported_by_child},
        {"descriptors that a child keeps", descriptors_of_child},
    };
    RUN_PARTS(parts);
}
