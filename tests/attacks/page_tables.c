/* Page tables, which the card has and which count for no process: of addresses that lie far from each other.
 *
 * All of the limit but LEFT is taken first. Tables for the whole of it are those of 32 GiB of the host's memory, which
 * an H100 had not pinned after 12 s.
 */
#include "memory.h"

#define BLOCK (2 * MIB)
#define LEFT  (2 * BLOCK)
#define TABLE 4096u /* bytes of the card for a stretch of addresses */

static void open_full_card(void)
{
    uint64_t pointer;
    open_card();
    must(cu.allocate(&pointer, attack_number("ATTACK_MEMORY") - LEFT), "cuMemAlloc");
}

/* How many tables of so many bytes take four times what is left. */
static unsigned tables(uint64_t bytes)
{
    return (unsigned)(4 * LEFT / bytes);
}

/* One block, mapped in many stretches. */
PART(of_blocks, "blocks mapped far apart")
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on_card();
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base = 0;
    open_full_card();
    must((int)CU(cuMemCreate)(&handle, BLOCK, &properties, 0), "cuMemCreate");
    for (unsigned i = 0; i < tables(TABLE); i++) {
        if (i % 64 == 0 && CU(cuMemAddressReserve)(&base, 512 * MIB * 64, 0, 0, 0) != CUDA_SUCCESS)
            return;
        CUdeviceptr address = base + 512 * MIB * (i % 64);
        if (CU(cuMemMap)(address, BLOCK, 0, handle, 0) != CUDA_SUCCESS)
            continue;
        CU(cuMemSetAccess)(address, BLOCK, &access, 1);
    }
}

/* A page of a file each 2 MiB, registered. */
PART(of_the_host, "pages of the host far apart")
{
    int file = memfd_create("page", 0);
    size_t reach = (size_t)tables(TABLE) * BLOCK;
    char *base = mmap(NULL, reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(base == MAP_FAILED || ftruncate(file, TABLE) != 0, "memory of the host");
    open_full_card();
    for (char *at = base; at < base + reach; at += BLOCK)
        if (mmap(at, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
            CU(cuMemHostRegister_v2)(at, TABLE, 0);
}

/* The same of memory that is registered whole: half a MiB of tables for each 256. */
PART(of_files, "files of the host")
{
    const size_t bytes = 256 * MIB;
    int file = memfd_create("pages", 0);
    must(ftruncate(file, (off_t)bytes), "memory of the host");
    open_full_card();
    for (unsigned i = 0; i < tables(MIB / 2); i++) {
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (at != MAP_FAILED)
            CU(cuMemHostRegister_v2)(at, bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
    }
}

PART(pinned, "pinned memory")
{
    void *memory;
    open_full_card();
    for (unsigned i = 0; i < tables(MIB / 2); i++)
        if (CU(cuMemHostAlloc)(&memory, 256 * MIB, 0) != CUDA_SUCCESS)
            return;
}

PART(sparse, "sparse arrays")
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 16384, .Height = 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4, .Flags = CUDA_ARRAY3D_SPARSE};
    CUarray array;
    open_full_card();
    for (unsigned i = 0; i < tables(MIB / 2); i++)
        if (CU(cuArray3DCreate_v2)(&array, &shape) != CUDA_SUCCESS)
            return;
}

int main(void)
{
    run_parts();
}
