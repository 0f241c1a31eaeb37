/* The driver's own lookup under each of its names, for each version of a program and each kind of stream. */
#include "memory.h"

static const int versions[] = {2000, 3020, 4000, 11030, 11080, 12000, 12080, 13000, 13030, 99000};
static const char *const families[] = {"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync",
                                       "cuMemCreate"};

typedef CUresult (*plain_lookup)(const char *, void **, int, uint64_t);
typedef CUresult (*full_lookup)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);

/* Take memory through what was found, a few MiB at a time. */
static void take_by(const char *name, void *found)
{
    CUmemAllocationProp properties = on_card();
    uint64_t values[2];
    CUresult answer = CUDA_SUCCESS;
    for (unsigned i = 0; i < 8 && answer == CUDA_SUCCESS; i++)
        if (strcmp(name, "cuMemAlloc") == 0)
            answer = ((typeof(&cuMemAlloc_v2))found)((CUdeviceptr *)values, 4 * MIB);
        else if (strcmp(name, "cuMemAllocPitch") == 0)
            answer = ((typeof(&cuMemAllocPitch_v2))found)((CUdeviceptr *)values, &values[1], MIB, 4, 4);
        else if (strcmp(name, "cuMemAllocManaged") == 0)
            answer = ((typeof(&cuMemAllocManaged))found)((CUdeviceptr *)values, 4 * MIB, CU_MEM_ATTACH_GLOBAL);
        else if (strcmp(name, "cuMemAllocAsync") == 0)
            answer = ((typeof(&cuMemAllocAsync))found)((CUdeviceptr *)values, 4 * MIB, NULL);
        else
            answer = ((typeof(&cuMemCreate))found)((CUmemGenericAllocationHandle *)values, 4 * MIB, &properties, 0);
}

static void try_found(const char *name, void *found, void *tried[], unsigned *count)
{
    for (unsigned i = 0; i < *count; i++)
        if (tried[i] == found)
            return;
    if (found == NULL || *count == 256)
        return;
    tried[(*count)++] = found;
    take_by(name, found);
}

static void by_lookup(const char *lookup, bool full)
{
    static void *tried[256];
    unsigned count = 0;
    void *function = driver_function(lookup);
    CUdriverProcAddressQueryResult result;
    for (unsigned family = 0; family < sizeof families / sizeof *families; family++)
        for (unsigned version = 0; version < sizeof versions / sizeof *versions; version++)
            for (uint64_t flags = 0; flags <= 2; flags++) {
                const char *name = families[family];
                void *found = NULL;
                if (full)
                    ((full_lookup)function)(name, &found, versions[version], flags, &result);
                else
                    ((plain_lookup)function)(name, &found, versions[version], flags);
                try_found(name, found, tried, &count);
            }
}

PART(first_form, "cuGetProcAddress")
{
    open_card();
    by_lookup("cuGetProcAddress", false);
    by_lookup("cuGetProcAddress_ptsz", false);
}

PART(second_form, "cuGetProcAddress_v2")
{
    open_card();
    by_lookup("cuGetProcAddress_v2", true);
    by_lookup("cuGetProcAddress_v2_ptsz", true);
}

/* A lookup that was itself looked up. */
PART(looked_up, "a lookup by lookup")
{
    static void *tried[256];
    unsigned count = 0;
    void *lookup, *found;
    open_card();
    for (unsigned version = 0; version < sizeof versions / sizeof *versions; version++)
        for (uint64_t flags = 0; flags <= 2; flags++) {
            lookup = found = NULL;
            CU(cuGetProcAddress)("cuGetProcAddress", &lookup, versions[version], flags);
            if (lookup == NULL)
                continue;
            CUdriverProcAddressQueryResult result;
            ((full_lookup)lookup)("cuMemAlloc", &found, 12000, flags, &result);
            try_found("cuMemAlloc", found, tried, &count);
        }
}

int main(void)
{
    run_parts();
}
