/* What an image of device code says of itself, before the driver loads it. */
#ifndef HETERO_SHARED_IMAGE_H
#define HETERO_SHARED_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

struct image {
    uint64_t bytes;   /* of what becomes code, without comments and arrays; 0: it cannot be told */
    uint64_t globals; /* bytes of the arrays that it declares; 0 also where they are not read: in fat binaries */
    bool calls;       /* its kernels may call functions, such as malloc and vprintf; true where that is not read */
};

/* An image in memory (an ELF file, a fat binary or its wrapper, or PTX with a NUL at its end), or in a file. */
struct image image_read(const void *data);
struct image image_of_file(const char *path);

#endif
