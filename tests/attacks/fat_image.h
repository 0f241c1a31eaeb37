/* Fat binaries as nvcc makes them: an image after another is added to one. */
#ifndef HETERO_ATTACK_FAT_IMAGE_H
#define HETERO_ATTACK_FAT_IMAGE_H

#include "../../limiters/cuda/fatbin.h"

#include <stddef.h>
#include <string.h>

static struct {
    struct fatbin_header head;
    char entries[8192];
} fat = {{.magic = FATBIN_MAGIC, .version = 1, .header_bytes = sizeof(struct fatbin_header)}, {0}};

/* Without options, which are a NUL here. */
struct ptx_entry {
    struct fatbin_entry entry;
    struct fatbin_options options;
    char none[8];
};

/* One block of LZ4: what is given as literals. */
static size_t lz4(char *to, const void *from, size_t size)
{
    char *at = to;
    size_t left = size - 15;
    *at++ = (char)0xf0;
    for (; left >= 255; left -= 255)
        *at++ = (char)255;
    *at++ = (char)left;
    memcpy(at, from, size);
    return (size_t)(at - to) + size;
}

/* One frame of zstd with one block, which is not compressed (RFC 8878). */
static size_t zstd(char *to, const void *from, size_t size)
{
    uint32_t content = (uint32_t)size, block = (uint32_t)size << 3 | 1;
    memcpy(to, "\x28\xb5\x2f\xfd\xa0", 5);
    memcpy(to + 5, &content, 4);
    memcpy(to + 9, &block, 3);
    memcpy(to + 12, from, size);
    return 12 + size;
}

/* An image for this processor (80: 8.0), which fits behind the others. */
static void fat_add(unsigned kind, unsigned processor, unsigned flags, const void *from, size_t size)
{
    char *at = fat.entries + fat.head.entries_bytes;
    struct ptx_entry made = {.entry = {.kind = (uint16_t)kind,
                                       .version = 0x101,
                                       .header_bytes = kind == FATBIN_PTX ? sizeof made : sizeof made.entry,
                                       .options_offset = kind == FATBIN_PTX ? offsetof(struct ptx_entry, options) : 0,
                                       .processor = processor,
                                       .flags = flags | 0x11},
                             .options = {.text_offset = offsetof(struct ptx_entry, none)}};
    char *image_at = at + made.entry.header_bytes;
    size_t packed = flags == FATBIN_LZ4    ? lz4(image_at, from, size)
                    : flags == FATBIN_ZSTD ? zstd(image_at, from, size)
                                           : size;
    if (flags == 0)
        memcpy(image_at, from, size);
    made.entry.image_bytes = (packed + 7) / 8 * 8;
    made.entry.compressed_bytes = flags == 0 ? 0 : (uint32_t)packed;
    made.entry.expanded_bytes = flags == 0 ? 0 : size;
    memcpy(at, &made, made.entry.header_bytes);
    fat.head.entries_bytes += made.entry.header_bytes + made.entry.image_bytes;
}

#endif
