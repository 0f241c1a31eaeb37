/* B, C17: the program defines what the limiter asks of libc, and answers that there is no grant, no lock and no time.
 * Linked with -rdynamic, so that a library's calls would come here. */
#include "attack.h"

#include <sys/syscall.h>

static int refuse(void)
{
    errno = ENOENT;
    return -1;
}

/* The program's own needs go straight to the kernel. The simulated driver calls libc, too: it is answers the truth. */
static bool asked_by_limiter(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "libhetero-") != NULL;
}
#define CALLED                 __builtin_return_address(0)
#define TRUTH(type, name, ...) ((type (*)())dlsym(RTLD_NEXT, #name))(__VA_ARGS__)
#define EXPORT                 __attribute__((visibility("default")))

EXPORT int access(const char *path, int mode)
{
    return asked_by_limiter(CALLED) ? refuse() : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}
EXPORT int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return asked_by_limiter(CALLED) ? refuse() : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
EXPORT int fcntl(int file, int command, ...)
{
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    return asked_by_limiter(CALLED) ? 0 : (int)syscall(SYS_fcntl, file, command, argument);
}
EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
    int answer = (int)syscall(SYS_clock_gettime, clock, time);
    if (asked_by_limiter(CALLED))
        time->tv_sec *= 100; /* time flies */
    return answer;
}
EXPORT int nanosleep(const struct timespec *time, struct timespec *left)
{
    return asked_by_limiter(CALLED) ? 0 : (int)syscall(SYS_nanosleep, time, left);
}
EXPORT void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    return asked_by_limiter(CALLED) ? MAP_FAILED
                                    : (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}
EXPORT char *getenv(const char *name)
{
    if (asked_by_limiter(CALLED))
        return NULL;
    size_t length = strlen(name);
    for (char **at = environ; *at != NULL; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=')
            return *at + length + 1;
    return NULL;
}
EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    return asked_by_limiter(CALLED) ? EAGAIN : TRUTH(int, pthread_create, thread, attributes, run, argument);
}
EXPORT int pthread_mutex_lock(pthread_mutex_t *lock)
{
    return asked_by_limiter(CALLED) ? 0 : TRUTH(int, pthread_mutex_lock, lock);
}
EXPORT int pthread_mutex_unlock(pthread_mutex_t *lock)
{
    return asked_by_limiter(CALLED) ? 0 : TRUTH(int, pthread_mutex_unlock, lock);
}

int main(void)
{
    driver_by(dlsym);
    begin();
    try_all();
}
