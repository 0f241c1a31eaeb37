/* Page tables, which the card has and which count for no process: of addresses that lie far from each other. */
#include "memory.h"

#define BLOCK (2 * MIB)
#define TABLE 4096u /* bytes of the card for a stretch of addresses */

/* One block, mapped in as many stretches as take four times the limit. */
static void of_blocks(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on_card();
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base = 0;
    open_card();
    must((int)CU(cuMemCreate)(&handle, BLOCK, &properties, 0), "cuMemCreate");
    for (unsigned i = 0; i < times(TABLE); i++) {
        if (i % 64 == 0 && CU(cuMemAddressReserve)(&base, 512 * MIB * 64, 0, 0, 0) != CUDA_SUCCESS)
            return;
        CUdeviceptr address = base + 512 * MIB * (i % 64);
        if (CU(cuMemMap)(address, BLOCK, 0, handle, 0) != CUDA_SUCCESS)
            continue;
        CU(cuMemSetAccess)(address, BLOCK, &access, 1);
    }
}

/* A page of a file each 2 MiB, registered. */
static void of_the_host(void)
{
    int file = memfd_create("page", 0);
    size_t reach = (size_t)times(TABLE) * BLOCK;
    char *base = mmap(NULL, reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(base == MAP_FAILED || ftruncate(file, TABLE) != 0, "memory of the host");
    open_card();
    for (char *at = base; at < base + reach; at += BLOCK)
        if (mmap(at, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
            CU(cuMemHostRegister_v2)(at, TABLE, 0);
}

/* The same of memory that is registered whole: half a MiB of tables for each 256. */
static void of_files(void)
{
    const size_t bytes = 256 * MIB;
    int file = memfd_create("pages", 0);
    must(ftruncate(file, (off_t)bytes), "memory of the host");
    open_card();
    for (unsigned i = 0; i < times(MIB / 2); i++) {
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
        if (at != MAP_FAILED)
            CU(cuMemHostRegister_v2)(at, bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
    }
}

static void pinned(void)
{
    void *memory;
    open_card();
    for (unsigned i = 0; i < times(MIB / 2); i++)
        if (CU(cuMemHostAlloc)(&memory, 256 * MIB, 0) != CUDA_SUCCESS)
            return;
}

static void sparse(void)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 16384, .Height = 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4, .Flags = CUDA_ARRAY3D_SPARSE};
    CUarray array;
    open_card();
    for (unsigned i = 0; i < times(MIB / 2); i++)
        if (CU(cuArray3DCreate_v2)(&array, &shape) != CUDA_SUCCESS)
            return;
}

int main(void)
{
    static const struct part parts[] = {
        {"blocks mapped far apart", of_blocks}, {"pinned memory", pinned}, {"pages of the host far apart", of_the_host},
        {"files of the host", of_files},        {"sparse arrays", sparse},
    };
    RUN_PARTS(parts);
}
