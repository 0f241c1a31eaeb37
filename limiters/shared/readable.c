#include "readable.h"

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The kernel copies the first byte of each page, and stops at one that is not there: nothing is signalled. */
#define PAGE       4096
#define PAGES_EACH 64
#define MOST_BYTES (UINT64_C(1) << 30)

/* Where the kernel does not answer (a filter of system calls), memory is taken to be there. */
static bool pages_readable(uintptr_t first, unsigned count)
{
    char bytes[PAGES_EACH];
    struct iovec to = {bytes, count}, from[PAGES_EACH];
    for (unsigned i = 0; i < count; i++)
        from[i] = (struct iovec){(void *)(first + (uintptr_t)i * PAGE), 1}; /* NOLINT(performance-no-int-to-ptr) */
    long copied = syscall(SYS_process_vm_readv, getpid(), &to, 1, from, count, 0);
    return copied < 0 ? errno != EFAULT : copied == (long)count;
}

bool readable(const void *at, uint64_t size)
{
    uintptr_t page = (uintptr_t)at & ~(uintptr_t)(PAGE - 1), end;
    if (size > MOST_BYTES || __builtin_add_overflow((uintptr_t)at, size, &end))
        return false;
    while (page < end) {
        uintptr_t left = (end - page + PAGE - 1) / PAGE;
        unsigned count = left < PAGES_EACH ? (unsigned)left : PAGES_EACH;
        if (!pages_readable(page, count))
            return false;
        page += (uintptr_t)count * PAGE;
    }
    return true;
}
