/* Keeps the limiter's descriptors apart from the program's (descriptor.h). */
#include "descriptor.h"

#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Some programs rely on getting the lowest numbers. A table of 1024 descriptors is two pages; a fork copies all of a
 * larger one. */
#define MAX_FD 1024

/* A system call, because glibc before 2.33 has fstat in no library that is loaded. */
static bool status_of(int fd, struct stat *status)
{
    return syscall(SYS_fstat, fd, status) == 0;
}

static int fd_limit_of_process(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < MAX_FD ? (int)limit.rlim_cur : MAX_FD;
}

bool descriptor_open(struct descriptor *descriptor, const char *path, int flags)
{
    struct stat status;
    descriptor->number = -1;
    int low_fd = open(path, flags | O_CLOEXEC | FAULT_VALUE(opening_may_wait, O_NONBLOCK, 0) | O_NOFOLLOW | O_NOCTTY);
    if (low_fd < 0)
        return false;
    if (!status_of(low_fd, &status) || !S_ISREG(status.st_mode)) {
        close(low_fd);
        errno = EINVAL;
        return false;
    }
    int fd_limit = fd_limit_of_process(), high_fd = fcntl(low_fd, F_DUPFD_CLOEXEC, fd_limit - fd_limit / 8);
    if (high_fd >= 0) /* without a free number above it keeps the low one */
        close(low_fd);
    *descriptor = (struct descriptor){
        .number = high_fd >= 0 ? high_fd : low_fd,
        .device = status.st_dev,
        .inode = status.st_ino,
    };
    return true;
}

void descriptor_note(struct descriptor *descriptor, int number)
{
    struct stat status;
    *descriptor = (struct descriptor){.number = -1};
    if (status_of(number, &status))
        *descriptor = (struct descriptor){.number = number, .device = status.st_dev, .inode = status.st_ino};
}

bool descriptor_stands(const struct descriptor *descriptor)
{
    struct stat status;
    if (FAULT(descriptor_unchecked))
        return descriptor->number >= 0;
    return descriptor->number >= 0 && status_of(descriptor->number, &status) && status.st_dev == descriptor->device &&
           status.st_ino == descriptor->inode;
}

void descriptor_close(struct descriptor *descriptor)
{
    if (descriptor_stands(descriptor))
        close(descriptor->number);
    descriptor->number = -1;
}
