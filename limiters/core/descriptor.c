/* Keeps the program's files and ours apart (descriptor.h). */
#include "descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Programs get the lowest numbers, and some count on which. A table of 1024 descriptors is two pages; a larger one
 * would be copied at each fork. */
#define HIGHEST 1024

/* As a system call: before 2.33 glibc had a function of this name in no library that is loaded. */
static bool status_of(int number, struct stat *file)
{
    return syscall(SYS_fstat, number, file) == 0;
}

static int highest(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < HIGHEST ? (int)limit.rlim_cur : HIGHEST;
}

bool descriptor_open(struct descriptor *descriptor, const char *path)
{
    struct stat file;
    descriptor->number = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor->number < 0)
        return false;
    int most = highest(), high = fcntl(descriptor->number, F_DUPFD_CLOEXEC, most - most / 8);
    if (high >= 0) { /* where there is no room above, it stays where it is */
        close(descriptor->number);
        descriptor->number = high;
    }
    if (status_of(descriptor->number, &file)) {
        descriptor->device = file.st_dev;
        descriptor->inode = file.st_ino;
    }
    return true;
}

bool descriptor_stands(const struct descriptor *descriptor)
{
    struct stat file;
    return descriptor->number >= 0 && status_of(descriptor->number, &file) && file.st_dev == descriptor->device &&
           file.st_ino == descriptor->inode;
}

void descriptor_close(struct descriptor *descriptor)
{
    if (descriptor_stands(descriptor))
        close(descriptor->number);
    descriptor->number = -1;
}
