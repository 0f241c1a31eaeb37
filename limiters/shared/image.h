/* The memory that an image of device code will take, as read before the driver loads it. */
#ifndef HETERO_SHARED_IMAGE_H
#define HETERO_SHARED_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

struct image {
    uint64_t code_bytes;             /* that its code may take */
    uint64_t global_bytes;           /* of the arrays that it declares, as far as they could be read */
    bool calls_malloc, calls_printf; /* its kernels call malloc, or vprintf; only known of PTX */
    bool has_unread;                 /* part of it could not be read: compressed by zstd, for the linker, or unknown */
};

/* An image in memory (an ELF file, a fat binary or its wrapper, or PTX with a NUL at its end), or in a file. */
struct image image_read(const void *data);
struct image image_of_file(const char *path);

/* An ELF file in memory, of `size_bytes`. */
struct image image_of_code(const void *data, uint64_t size_bytes);

#endif
