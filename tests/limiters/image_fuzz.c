/* Whatever an image of device code says of itself, reading it stays within it, ends, and takes no more memory than it
 * can have been compressed from.
 *
 * An input is a byte that means nothing and an image: PTX, ELF, a bundle or a fat binary. It is read as a file; its
 * images are walked as those of a fat binary; and all of it is expanded as what one image may be compressed to. Linked
 * with libFuzzer it is a fuzzer; by itself it runs every file it is given and mutations of them, always the same:
 *   image_fuzz COUNT FILE...
 */
#include "../../limiters/shared/fat.h"
#include "../../limiters/shared/image.h"

#include <sys/mman.h>
#include <unistd.h>

#define MOST 8192u /* bytes of an input */

#include "mutate.h"

static void read_file(const uint8_t *bytes, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = (int)memfd_create("image", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, size, 0) == (ssize_t)size);
    image_of_file(path);
}

/* Of its size, so that reading past it is seen. */
static uint8_t *copy_of(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    REQUIRE(copy != NULL);
    memcpy(copy, bytes, size);
    return copy;
}

static void walk(const uint8_t *bytes, size_t size)
{
    uint8_t *fat = copy_of(bytes, size);
    struct fat_image image;
    uint64_t offset = 0, step_count = 0;
    for (uint64_t previous_offset = 0; fat_next(fat, size, &offset, &image);
         previous_offset = offset, free(image.owned_copy)) {
        REQUIRE(offset > previous_offset && offset <= size && ++step_count <= size);
        const char *start = (const char *)fat;
        REQUIRE(image.data == NULL || image.owned_copy != NULL ||
                (image.data >= start && image.size_bytes <= (uint64_t)(start + size - image.data)));
        REQUIRE(image.owned_copy == NULL || image.size_bytes <= 256 * (uint64_t)size);
        for (unsigned i = 0; image.owned_copy != NULL && i < 16; i++)
            REQUIRE(image.data[image.size_bytes + i] == 0);
    }
    free(fat);
}

static void expand(const uint8_t *bytes, size_t size)
{
    static const uint64_t capacities[] = {0, 1, 100, 65536};
    uint8_t *packed = copy_of(bytes, size);
    for (unsigned i = 0; i < sizeof capacities / sizeof *capacities; i++) {
        char *target = malloc(capacities[i] == 0 ? 1 : capacities[i]);
        REQUIRE(target != NULL && lz4_expand(packed, size, target, capacities[i]) <= capacities[i]);
        free(target);
    }
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    read_file(bytes + 1, size - 1);
    walk(bytes + 1, size - 1);
    expand(bytes + 1, size - 1);
    return 0;
}
