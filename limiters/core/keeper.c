/* Keeps the grant of one machine standing from the moment the limiter is loaded. A program may come to the card late,
 * and without the open file by which `hetero run` keeps the grant: most starters close files before they start a
 * program.
 *
 * The lock is of a byte past all others of the usage region (region.h), and no slot: most programs never use the card.
 * A mapping keeps it, so that no closing of descriptors ends it. A child of fork inherits the mapping and the lock with
 * it; a program that another executes loads the limiter anew. Where the region cannot be opened nothing is kept, and
 * the first call of the driver says why. A container's grant stands while its container does.
 */
#include "region.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* How many bytes are tried: one may be of a process with the same number in another namespace. */
#define TRIES 16

static bool lock_own_byte(int fd)
{
    bool is_locked = false;
    for (int attempt = 0; attempt < TRIES && !is_locked; attempt++) {
        struct flock lock = {.l_type = F_WRLCK,
                             .l_whence = SEEK_SET,
                             .l_start = HETERO_REGION_LOCK_PROCESSES + (off_t)getpid() + attempt,
                             .l_len = 1};
        is_locked = fcntl(fd, F_OFD_SETLK, &lock) == 0;
    }
    return is_locked;
}

__attribute__((constructor)) static void keep_grant(void)
{
    static const char usage[] = "usage";
    char path[PATH_MAX];
    const char *grant_path = getenv("HETERO_GRANT"), *last_slash = grant_path == NULL ? NULL : strrchr(grant_path, '/');
    size_t directory_bytes = last_slash == NULL ? 0 : (size_t)(last_slash + 1 - grant_path);
    if (directory_bytes == 0 || directory_bytes + sizeof usage > sizeof path)
        return;
    memcpy(path, grant_path, directory_bytes);
    memcpy(path + directory_bytes, usage, sizeof usage);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (lock_own_byte(fd)) /* writable, as all mappings by which processes hold a grant, and never written */
        mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}
