/* Keeps the program's files and ours apart (descriptor.h). */
#include "descriptor.h"

#include "fault.h"

#include <errno.h>
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

bool descriptor_open(struct descriptor *descriptor, const char *path, int flags)
{
    struct stat file;
    descriptor->number = -1;
    int low = open(path, flags | O_CLOEXEC | FAULT_VALUE(opening_may_wait, O_NONBLOCK, 0) | O_NOFOLLOW | O_NOCTTY);
    if (low < 0)
        return false;
    if (!status_of(low, &file) || !S_ISREG(file.st_mode)) {
        close(low);
        errno = EINVAL;
        return false;
    }
    int most = highest(), high = fcntl(low, F_DUPFD_CLOEXEC, most - most / 8);
    if (high >= 0) /* where there is no room above, it stays where it is */
        close(low);
    *descriptor = (struct descriptor){
        .number = high >= 0 ? high : low,
        .device = file.st_dev,
        .inode = file.st_ino,
    };
    return true;
}

bool descriptor_stands(const struct descriptor *descriptor)
{
    struct stat file;
    if (FAULT(descriptor_unchecked))
        return descriptor->number >= 0;
    return descriptor->number >= 0 && status_of(descriptor->number, &file) && file.st_dev == descriptor->device &&
           file.st_ino == descriptor->inode;
}

void descriptor_close(struct descriptor *descriptor)
{
    if (descriptor_stands(descriptor))
        close(descriptor->number);
    descriptor->number = -1;
}
