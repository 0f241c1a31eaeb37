/* Walks fat binaries (fat.h). The program wrote them, so each size is checked against the bytes that are readable. */
#include "fat.h"

#include "../cuda/fatbin.h"
#include "readable.h"

#include <stdlib.h>
#include <string.h>

/* LZ4 expands each byte to fewer bytes than this. */
#define MAX_EXPANSION 256

#define ZEROS 16

uint64_t fat_size(const void *data, uint64_t size_bytes)
{
    struct fatbin_header header;
    uint64_t total_bytes;
    if (size_bytes < sizeof header || !is_readable(data, sizeof header))
        return 0;
    memcpy(&header, data, sizeof header);
    bool is_torn = header.header_bytes < sizeof header ||
                   __builtin_add_overflow(header.header_bytes, header.entries_bytes, &total_bytes);
    return is_torn || total_bytes > size_bytes ? 0 : total_bytes;
}

static uint64_t smaller(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

/* Copy an image and expand it if it is compressed; zeros follow it. */
static void copy_image(struct fat_image *image, const char *source, const struct fatbin_entry *entry)
{
    bool is_packed = (entry->flags & FATBIN_ANY) != 0;
    uint64_t stored_bytes = is_packed ? smaller(entry->compressed_bytes, entry->image_bytes) : entry->image_bytes;
    uint64_t image_bytes = is_packed ? entry->expanded_bytes : stored_bytes;
    if ((is_packed && (entry->flags & FATBIN_ANY) != FATBIN_LZ4) || image_bytes / MAX_EXPANSION > stored_bytes ||
        !is_readable(source, stored_bytes))
        return;
    char *copy = calloc(image_bytes + ZEROS, 1);
    if (copy != NULL && !is_packed)
        memcpy(copy, source, image_bytes);
    if (copy != NULL && is_packed && lz4_expand(source, stored_bytes, copy, image_bytes) != image_bytes) {
        free(copy);
        copy = NULL;
    }
    image->data = image->owned_copy = copy;
    image->size_bytes = image_bytes;
}

/* Read an entry where `remaining_bytes` are left for it and its image. False: it is truncated. */
static bool read_entry(const char *source, uint64_t remaining_bytes, struct fatbin_entry *entry)
{
    if (remaining_bytes < sizeof *entry || !is_readable(source, sizeof *entry))
        return false;
    memcpy(entry, source, sizeof *entry);
    return entry->header_bytes >= sizeof *entry && entry->header_bytes <= remaining_bytes &&
           entry->image_bytes <= remaining_bytes - entry->header_bytes;
}

bool fat_next(const void *data, uint64_t size_bytes, uint64_t *offset, struct fat_image *image)
{
    struct fatbin_header header;
    struct fatbin_entry entry;
    uint64_t end_offset = fat_size(data, size_bytes), entry_offset = *offset;
    *image = (struct fat_image){0};
    memcpy(&header, data, end_offset == 0 ? 0 : sizeof header);
    if (end_offset == 0 || entry_offset >= end_offset)
        return false;
    entry_offset = entry_offset == 0 ? header.header_bytes : entry_offset;
    const char *source = (const char *)data + entry_offset;
    bool is_whole = read_entry(source, end_offset - entry_offset, &entry);
    *offset = is_whole ? entry_offset + entry.header_bytes + entry.image_bytes : end_offset;
    if (!is_whole || (entry.kind != FATBIN_ELF && entry.kind != FATBIN_PTX))
        return entry_offset < end_offset;
    image->is_text = entry.kind == FATBIN_PTX;
    if (image->is_text || (entry.flags & FATBIN_ANY) != 0)
        copy_image(image, source + entry.header_bytes, &entry);
    else
        *image = (struct fat_image){.data = source + entry.header_bytes, .size_bytes = entry.image_bytes};
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- LZ4 */

/* A block is a list of sequences. Each has a byte with two lengths of four bits, literals, two bytes with the distance
 * back to a match, and the match of at least four bytes. The last one ends with its literals (lz4_Block_format.md). */
struct lz4_block {
    const unsigned char *input, *input_end;
    unsigned char *output, *output_end, *output_start;
};

/* A length of 15 is continued in bytes, up to one below 255, which are added. False: the input ends before. */
static bool whole_length(struct lz4_block *block, uint64_t *length)
{
    unsigned char addend = 255;
    if (*length != 15)
        return true;
    while (addend == 255) {
        if (block->input == block->input_end)
            return false;
        addend = *block->input++;
        *length += addend;
    }
    return true;
}

static bool copy_literals(struct lz4_block *block, uint64_t length)
{
    if (!whole_length(block, &length) || length > (uint64_t)(block->input_end - block->input) ||
        length > (uint64_t)(block->output_end - block->output))
        return false;
    memcpy(block->output, block->input, length);
    block->input += length;
    block->output += length;
    return true;
}

/* The match may overlap the bytes that it writes. */
static bool copy_match(struct lz4_block *block, uint64_t length)
{
    if (block->input_end - block->input < 2)
        return false;
    uint64_t distance = block->input[0] | (uint64_t)block->input[1] << 8;
    block->input += 2;
    if (!whole_length(block, &length))
        return false;
    length += 4;
    if (distance == 0 || distance > (uint64_t)(block->output - block->output_start) ||
        length > (uint64_t)(block->output_end - block->output))
        return false;
    for (; length > 0; length--, block->output++)
        *block->output = *(block->output - distance);
    return true;
}

uint64_t lz4_expand(const void *data, uint64_t size_bytes, void *output, uint64_t output_bytes)
{
    struct lz4_block block = {.input = data,
                              .input_end = (const unsigned char *)data + size_bytes,
                              .output = output,
                              .output_end = (unsigned char *)output + output_bytes,
                              .output_start = output};
    while (block.input < block.input_end) {
        unsigned char length_nibbles = *block.input++;
        if (!copy_literals(&block, length_nibbles >> 4))
            return 0;
        if (block.input == block.input_end)
            return (uint64_t)(block.output - block.output_start);
        if (!copy_match(&block, length_nibbles & 15))
            return 0;
    }
    return 0;
}
