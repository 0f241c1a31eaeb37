/* What an image of device code says of itself, before the driver loads it. */
#ifndef HETERO_SHARED_IMAGE_H
#define HETERO_SHARED_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

struct image {
    uint64_t code_bytes;             /* bytes that its code may take, without comments and arrays */
    uint64_t global_bytes;           /* bytes of the arrays that it declares, as far as they could be read */
    bool calls_malloc, calls_printf; /* its kernels call malloc, or vprintf, where it is text */
    bool has_unread; /* of some of it nothing is known: compressed by zstd, for the linker, or of no known form */
};

/* An image in memory (an ELF file, a fat binary or its wrapper, or PTX with a NUL at its end), or in a file. */
struct image image_read(const void *data);
struct image image_of_file(const char *path);

/* An ELF file in memory, of so many bytes. */
struct image image_of_code(const void *data, uint64_t size_bytes);

#endif
