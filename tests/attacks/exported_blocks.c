/* Blocks that live on where their handle is gone: in descriptors, imports, mappings, other processes. */
#include "memory.h"

PART(in_descriptors, "exported and released")
{
    CUmemGenericAllocationHandle handle;
    open_card();
    for (unsigned i = 0; i < times(BLOCK) && exported(BLOCK, &handle) >= 0; i++)
        CU(cuMemRelease)(handle);
}

PART(imported_here, "imported in its own process")
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
PART(mapped_from_import, "mapped from the import")
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
PART(address_ranges, "descriptors of addresses")
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
PART(all_then_all, "all, then all again")
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

PART(imported_by_child, "imported by a child")
{
    given_to_child(true);
}

PART(descriptors_of_child, "descriptors that a child keeps")
{
    given_to_child(false);
}

int main(void)
{
    run_parts();
}
