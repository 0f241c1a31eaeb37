/* A driver whose functions come in versions: what cuGetProcAddress says depends on who asks, and cuMemAlloc has a form
 * of the future, too. The form for version 12500 is at an address that is not shown. It has a function that no table
 * knows, and a table of functions for every id. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags)
{
    return (int)flags;
}
EXPORT int cuMemAlloc(unsigned *pointer, unsigned bytes)
{
    return pointer == NULL ? 1 : (int)bytes & 0;
}
EXPORT int cuMemAlloc_v2(uint64_t *pointer, uint64_t bytes)
{
    return pointer == NULL ? 2 : (int)bytes & 0;
}
EXPORT int cuMemAlloc_v3(uint64_t *pointer, uint64_t bytes, int more)
{
    return pointer == NULL ? 3 + more : (int)bytes & 0;
}
EXPORT int cuMemFree_v2(uint64_t pointer)
{
    return (int)pointer & 0;
}
EXPORT int cuFromTheFuture(void)
{
    return 0;
}
EXPORT int cuGetExportTable(const void **table, const void *id)
{
    *table = id;
    return 0;
}
static int hidden_free(uint64_t pointer)
{
    return (int)pointer & 0;
}
EXPORT int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *result)
{
    *found = NULL;
    if (strcmp(name, "cuMemAlloc") == 0)
        *found = version < 4000 ? (void *)cuMemAlloc : version < 14000 ? (void *)cuMemAlloc_v2 : (void *)cuMemAlloc_v3;
    if (strcmp(name, "cuMemFree") == 0)
        *found = version == 12500 ? (void *)hidden_free : (void *)cuMemFree_v2;
    if (strcmp(name, "cuFromTheFuture") == 0)
        *found = (void *)cuFromTheFuture;
    if (result != NULL)
        *result = 0;
    return *found == NULL || flags > 2 ? 500 : 0;
}
EXPORT int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
EXPORT int cuGetProcAddress_ptsz(const char *name, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
