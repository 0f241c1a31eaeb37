/* Fat binaries. The driver chooses the best image for the device, machine code before PTX, and expands it with the
 * libraries that define the compression formats. Its other forms (for the linker, or linked with others) are not
 * simulated: they count as no image for this device. */
#include "cuda/fatbin.h"
#include "driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

bool image_is_fat(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    return magic == FATBIN_WRAPPER_MAGIC || magic == FATBIN_MAGIC;
}

/* How well an image suits a processor; 0: it does not. */
static unsigned suits(const struct fatbin_entry *entry, const struct nvidia_device *slot)
{
    unsigned device_capability = (unsigned)(slot->major * 10 + slot->minor);
    if (entry->processor > device_capability ||
        (entry->kind == FATBIN_ELF && entry->processor / 10 != device_capability / 10))
        return 0;
    return entry->processor + (entry->kind == FATBIN_ELF ? 1000 : 1);
}

static bool expand(const struct fatbin_entry *entry, const char *source, char *destination)
{
    if (entry->flags & FATBIN_LZ4) {
        void *library = dlopen("liblz4.so.1", RTLD_NOW);
        int (*lz4)(const char *, char *, int, int) = library ? dlsym(library, "LZ4_decompress_safe") : NULL;
        return lz4 && lz4(source, destination, (int)entry->compressed_bytes, (int)entry->expanded_bytes) ==
                          (int)entry->expanded_bytes;
    }
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    size_t (*zstd)(void *, size_t, const void *, size_t) = library ? dlsym(library, "ZSTD_decompress") : NULL;
    return zstd && zstd(destination, entry->expanded_bytes, source, entry->compressed_bytes) == entry->expanded_bytes;
}

/* The options of PTX are read at the offset that the entry gives, without a check. In NVIDIA's reader a strlen()
 * there ends the program by SIGSEGV (nvJitLinkAddData of libnvJitLink 13.5). */
static void read_options(const char *entry, uint32_t options_offset)
{
    struct fatbin_options options;
    memcpy(&options, entry + options_offset, sizeof options);
    volatile size_t length = strlen(entry + options.text_offset);
    (void)length;
}

/* The image for the device, with zeros behind it; to be freed. */
CUresult image_of_fat(const void *image, const struct device *device, char **chosen)
{
    struct fatbin_wrapper wrapper;
    struct fatbin_header fat;
    struct fatbin_entry entry, best = {0};
    memcpy(&wrapper, image, sizeof wrapper);
    if (wrapper.magic == FATBIN_WRAPPER_MAGIC)
        image = wrapper.data;
    memcpy(&fat, image, sizeof fat);
    if (fat.magic != FATBIN_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    const char *best_entry = NULL, *end = (const char *)image + fat.header_bytes + fat.entries_bytes;
    unsigned best_score = 0;
    for (const char *cursor = (const char *)image + fat.header_bytes; cursor + sizeof entry <= end;
         cursor += entry.header_bytes + entry.image_bytes) {
        memcpy(&entry, cursor, sizeof entry);
        if ((entry.kind != FATBIN_PTX && entry.kind != FATBIN_ELF) || suits(&entry, device->slot) <= best_score)
            continue;
        best_score = suits(&entry, device->slot);
        best = entry;
        best_entry = cursor;
    }
    if (!best_entry)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (best.kind == FATBIN_PTX)
        read_options(best_entry, best.options_offset);
    const char *data = best_entry + best.header_bytes;
    bool is_packed = best.flags & (FATBIN_LZ4 | FATBIN_ZSTD);
    *chosen = calloc(1, (is_packed ? best.expanded_bytes : best.image_bytes) + 16);
    if (!is_packed)
        memcpy(*chosen, data, best.image_bytes);
    if (!is_packed || expand(&best, data, *chosen))
        return CUDA_SUCCESS;
    free(*chosen);
    return CUDA_ERROR_INVALID_IMAGE;
}
