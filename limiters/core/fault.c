/* Which fault is on (fault.h); empty but in the build with faults. */
#include "fault.h"

#ifdef FAULTS
#include "libc.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {
#define FAULT_NAME(name) [FAULT_##name] = #name,
#include "faults.def"
};

#define UNREAD (-1)

static enum fault named(const char *name)
{
    if (name == NULL || *name == '\0')
        return FAULT_NONE;
    for (int fault = FAULT_NONE + 1; fault < FAULT_UNLISTED; fault++)
        if (same_text(names[fault], name))
            return (enum fault)fault;
    return FAULT_UNLISTED;
}

enum fault fault_chosen(void)
{
    static atomic_int chosen = UNREAD; /* every thread that writes it writes the same value */
    int fault = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (fault == UNREAD) {
        fault = named(first_variable("HETERO_FAULT"));
        atomic_store_explicit(&chosen, fault, memory_order_relaxed);
    }
    return (enum fault)fault;
}

int fault_pause(void)
{
    const struct timespec moment = {.tv_nsec = 50000};
    /* The handlers of an attack look whether it is the limiter's code that they interrupt. */
    for (volatile int i = 0; i < 20000; i++)
        continue;
    nanosleep(&moment, NULL);
    return 1;
}

__attribute__((constructor)) static void refuse_unlisted(void)
{
    static const char text[] = "hetero: HETERO_FAULT names no fault that core/faults.def lists\n";
    if (fault_chosen() == FAULT_UNLISTED && write(STDERR_FILENO, text, sizeof text - 1) != 0)
        syscall(SYS_exit_group, 2);
}
#endif
