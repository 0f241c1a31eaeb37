/* Fat binaries: of their images the driver takes the best one for the device, machine code before PTX, and expands it
 * with the libraries that the formats come from. The layout of entries is not documented: it is as public tools read it
 * (cricket's cpu-elf2.c, ZLUDA's fatbin.rs). The driver's other forms (for the linker, or linked with others) are not
 * simulated: an image of those is none for this device.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FAT_MAGIC     0xba55ed50u
#define BY_LZ4        0x2000u
#define BY_ZSTD       0x8000u

enum { KIND_PTX = 1, KIND_ELF = 2 };

struct wrapper {
    uint32_t magic, version;
    const void *data;
};

struct fat {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size;
    uint32_t compressed, unknown;
    uint16_t minor, major;
    uint32_t processor, name, name_size;
    uint64_t flags, zero, expanded;
};

bool image_is_fat(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    return magic == WRAPPER_MAGIC || magic == FAT_MAGIC;
}

/* How well an image suits a processor; 0: it does not. */
static unsigned suits(const struct fat_entry *entry, const struct nvidia_device *slot)
{
    unsigned here = (unsigned)(slot->major * 10 + slot->minor);
    if (entry->processor > here || (entry->kind == KIND_ELF && entry->processor / 10 != here / 10))
        return 0;
    return entry->processor + (entry->kind == KIND_ELF ? 1000 : 1);
}

static bool expand(const struct fat_entry *entry, const char *from, char *to)
{
    if (entry->flags & BY_LZ4) {
        void *library = dlopen("liblz4.so.1", RTLD_NOW);
        int (*lz4)(const char *, char *, int, int) = library ? dlsym(library, "LZ4_decompress_safe") : NULL;
        return lz4 && lz4(from, to, (int)entry->compressed, (int)entry->expanded) == (int)entry->expanded;
    }
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    size_t (*zstd)(void *, size_t, const void *, size_t) = library ? dlsym(library, "ZSTD_decompress") : NULL;
    return zstd && zstd(to, entry->expanded, from, entry->compressed) == entry->expanded;
}

/* The image for the device, with zeros behind it; to be freed. */
CUresult image_of_fat(const void *image, const struct device *device, char **chosen)
{
    struct wrapper wrapper;
    struct fat fat;
    struct fat_entry entry, best = {0};
    memcpy(&wrapper, image, sizeof wrapper);
    if (wrapper.magic == WRAPPER_MAGIC)
        image = wrapper.data;
    memcpy(&fat, image, sizeof fat);
    if (fat.magic != FAT_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    const char *found = NULL, *end = (const char *)image + fat.header + fat.size;
    unsigned suited = 0;
    for (const char *at = (const char *)image + fat.header; at + sizeof entry <= end; at += entry.header + entry.size) {
        memcpy(&entry, at, sizeof entry);
        if ((entry.kind != KIND_PTX && entry.kind != KIND_ELF) || suits(&entry, device->slot) <= suited)
            continue;
        suited = suits(&entry, device->slot);
        best = entry;
        found = at + entry.header;
    }
    if (!found)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    bool packed = best.flags & (BY_LZ4 | BY_ZSTD);
    *chosen = calloc(1, (packed ? best.expanded : best.size) + 16);
    if (!packed)
        memcpy(*chosen, found, best.size);
    if (!packed || expand(&best, found, *chosen))
        return CUDA_SUCCESS;
    free(*chosen);
    return CUDA_ERROR_INVALID_IMAGE;
}
