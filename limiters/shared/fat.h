/* Fat binaries: several images in one, of which the driver takes one. Each may be compressed. */
#ifndef HETERO_SHARED_FAT_H
#define HETERO_SHARED_FAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a fat binary, of which at most `size` bytes are there, with all its entries: 0: it has no such form. */
uint64_t fat_size(const void *data, uint64_t size_bytes);

/* One image. */
struct fat_image {
    const char *data; /* 16 bytes of zeros follow where it was copied; NULL: it is compressed otherwise, or torn */
    uint64_t size_bytes;
    bool is_text;     /* PTX, with a NUL at its end */
    void *owned_copy; /* to be freed */
};

/* The image at `*at`, an offset that is 0 at first and is moved to the next one. False: there is none. */
bool fat_next(const void *data, uint64_t size_bytes, uint64_t *offset, struct fat_image *image);

/* Expand one LZ4 block into at most `room` bytes: how many they were; 0: it is none, or does not fit. */
uint64_t lz4_expand(const void *block, uint64_t size_bytes, void *output, uint64_t output_bytes);

#endif
