/* Sleep until a word of this process changes, and wake those who sleep. */
#ifndef HETERO_FUTEX_H
#define HETERO_FUTEX_H

#include "engine.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Wait while the word has this value, `timeout_ns` at most. */
static inline void futex_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / (1000 * MS)),
                               .tv_nsec = (long)(timeout_ns % (1000 * MS))};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &timeout, NULL, 0);
}

/* Wake everybody who waits on the word. */
static inline void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#endif
