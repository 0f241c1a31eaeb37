/* Fat binaries: several images in one file, of which the driver loads one. Each may be compressed. */
#ifndef HETERO_SHARED_FAT_H
#define HETERO_SHARED_FAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of a fat binary with all its entries, at most `size_bytes`. 0: it is not one. */
uint64_t fat_size(const void *data, uint64_t size_bytes);

/* One image. */
struct fat_image {
    const char *data; /* 16 zeros follow a copy; NULL: an unknown compression, or truncated */
    uint64_t size_bytes;
    bool is_text;     /* PTX, with a NUL at its end */
    void *owned_copy; /* to be freed by the caller; NULL: `data` is the program's */
};

/* The image at `*offset`, which is 0 at first and is moved to the next image. False: there is none. */
bool fat_next(const void *data, uint64_t size_bytes, uint64_t *offset, struct fat_image *image);

/* Expand one LZ4 block into at most `output_bytes`. Returns how many were written; 0: it is no block, or does not fit.
 */
uint64_t lz4_expand(const void *block, uint64_t size_bytes, void *output, uint64_t output_bytes);

#endif
