/* Walks fat binaries (fat.h). Nothing is believed: each size is held to what is there. */
#include "fat.h"

#include "../cuda/fatbin.h"
#include "readable.h"

#include <stdlib.h>
#include <string.h>

/* What LZ4 can make of a byte is less. */
#define MOST_OF_A_BYTE 256

#define ZEROS 16

uint64_t fat_size(const void *data, uint64_t size)
{
    struct fatbin_header header;
    uint64_t whole;
    if (size < sizeof header || !readable(data, sizeof header))
        return 0;
    memcpy(&header, data, sizeof header);
    bool torn = header.header < sizeof header || __builtin_add_overflow(header.header, header.size, &whole);
    return torn || whole > size ? 0 : whole;
}

static uint64_t less(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* With zeros at its end. */
static void copy_image(struct fat_image *image, const char *from, const struct fatbin_entry *entry)
{
    bool packed = (entry->flags & FATBIN_ANY) != 0;
    uint64_t given = packed ? less(entry->compressed, entry->size) : entry->size;
    uint64_t room = packed ? entry->expanded : given;
    if ((packed && (entry->flags & FATBIN_ANY) != FATBIN_LZ4) || room / MOST_OF_A_BYTE > given ||
        !readable(from, given))
        return;
    char *to = calloc(room + ZEROS, 1);
    if (to != NULL && !packed)
        memcpy(to, from, room);
    if (to != NULL && packed && lz4_expand(from, given, to, room) != room) {
        free(to);
        to = NULL;
    }
    image->data = image->copy = to;
    image->size = room;
}

/* An entry and its image, at a place with so many bytes left. False: it is torn. */
static bool read_entry(const char *from, uint64_t left, struct fatbin_entry *entry)
{
    if (left < sizeof *entry || !readable(from, sizeof *entry))
        return false;
    memcpy(entry, from, sizeof *entry);
    return entry->header >= sizeof *entry && entry->header <= left && entry->size <= left - entry->header;
}

bool fat_next(const void *data, uint64_t size, uint64_t *at, struct fat_image *image)
{
    struct fatbin_header header;
    struct fatbin_entry entry;
    uint64_t end = fat_size(data, size), here = *at;
    *image = (struct fat_image){0};
    memcpy(&header, data, end == 0 ? 0 : sizeof header);
    if (end == 0 || here >= end)
        return false;
    here = here == 0 ? header.header : here;
    const char *from = (const char *)data + here;
    bool whole = read_entry(from, end - here, &entry);
    *at = whole ? here + entry.header + entry.size : end;
    if (!whole || (entry.kind != FATBIN_ELF && entry.kind != FATBIN_PTX))
        return here < end;
    image->text = entry.kind == FATBIN_PTX;
    if (image->text || (entry.flags & FATBIN_ANY) != 0)
        copy_image(image, from + entry.header, &entry);
    else
        *image = (struct fat_image){.data = from + entry.header, .size = entry.size};
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- LZ4 */

/* A block is sequences: a byte with two lengths of four bits, literals, two bytes that say how far back a match begins,
 * and the match of at least four bytes; the last ends with its literals (lz4_Block_format.md). */
struct block {
    const unsigned char *from, *from_end;
    unsigned char *to, *to_end, *start;
};

/* A length of 15 goes on in bytes until one is below 255. False: it ends before. */
static bool whole_length(struct block *block, uint64_t *length)
{
    unsigned char more = 255;
    if (*length != 15)
        return true;
    while (more == 255) {
        if (block->from == block->from_end)
            return false;
        more = *block->from++;
        *length += more;
    }
    return true;
}

static bool copy_literals(struct block *block, uint64_t length)
{
    if (!whole_length(block, &length) || length > (uint64_t)(block->from_end - block->from) ||
        length > (uint64_t)(block->to_end - block->to))
        return false;
    memcpy(block->to, block->from, length);
    block->from += length;
    block->to += length;
    return true;
}

/* It may overlap what it makes. */
static bool copy_match(struct block *block, uint64_t length)
{
    if (block->from_end - block->from < 2)
        return false;
    uint64_t back = block->from[0] | (uint64_t)block->from[1] << 8;
    block->from += 2;
    if (!whole_length(block, &length))
        return false;
    length += 4;
    if (back == 0 || back > (uint64_t)(block->to - block->start) || length > (uint64_t)(block->to_end - block->to))
        return false;
    for (; length > 0; length--, block->to++)
        *block->to = *(block->to - back);
    return true;
}

uint64_t lz4_expand(const void *data, uint64_t size, void *to, uint64_t room)
{
    struct block block = {.from = data,
                          .from_end = (const unsigned char *)data + size,
                          .to = to,
                          .to_end = (unsigned char *)to + room,
                          .start = to};
    while (block.from < block.from_end) {
        unsigned char lengths = *block.from++;
        if (!copy_literals(&block, lengths >> 4))
            return 0;
        if (block.from == block.from_end)
            return (uint64_t)(block.to - block.start);
        if (!copy_match(&block, lengths & 15))
            return 0;
    }
    return 0;
}
