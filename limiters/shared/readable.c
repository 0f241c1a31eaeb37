#include "readable.h"

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The kernel copies the first byte of each page, and stops at an unmapped one without a signal. */
#define PAGE           4096
#define PAGES_PER_CALL 64
#define MAX_BYTES      (UINT64_C(1) << 30)

/* If the system call is not permitted (seccomp), pages count as readable. */
static bool pages_readable(uintptr_t first_page, unsigned page_count)
{
    char bytes[PAGES_PER_CALL];
    struct iovec destination = {bytes, page_count}, sources[PAGES_PER_CALL];
    for (unsigned index = 0; index < page_count; index++)
        sources[index] = (struct iovec){(void *)(first_page + (uintptr_t)index * PAGE),
                                        1}; /* NOLINT(performance-no-int-to-ptr) */
    long copied_bytes = syscall(SYS_process_vm_readv, getpid(), &destination, 1, sources, page_count, 0);
    return copied_bytes < 0 ? errno != EFAULT : copied_bytes == (long)page_count;
}

bool is_readable(const void *start, uint64_t size_bytes)
{
    uintptr_t page = (uintptr_t)start & ~(uintptr_t)(PAGE - 1), end;
    if (size_bytes > MAX_BYTES || __builtin_add_overflow((uintptr_t)start, size_bytes, &end))
        return false;
    while (page < end) {
        uintptr_t remaining_pages = (end - page + PAGE - 1) / PAGE;
        unsigned page_count = remaining_pages < PAGES_PER_CALL ? (unsigned)remaining_pages : PAGES_PER_CALL;
        if (!pages_readable(page, page_count))
            return false;
        page += (uintptr_t)page_count * PAGE;
    }
    return true;
}
