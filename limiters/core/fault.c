/* Which fault is on (fault.h); empty but in the build with faults. */
#include "fault.h"

#ifdef FAULTS
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {
#define FAULT_NAME(name) [FAULT_##name] = #name,
#include "faults.def"
};

#define UNREAD (-1)

/* The loader's: what the kernel put on the first stack. How many arguments there are, these, NULL, the environment. It
 * is asked before libc begins, and no function of libc can be called then. */
extern const uintptr_t *__libc_stack_end;

/* What comes after `start` in a text; NULL: the text does not begin so. */
static const char *after(const char *start, const char *text)
{
    while (*start != '\0' && *start == *text)
        start++, text++;
    return *start == '\0' ? text : NULL;
}

static enum fault named(const char *name)
{
    if (*name == '\0')
        return FAULT_NONE;
    for (int fault = FAULT_NONE + 1; fault < FAULT_UNLISTED; fault++) {
        const char *rest = after(names[fault], name);
        if (rest != NULL && *rest == '\0')
            return (enum fault)fault;
    }
    return FAULT_UNLISTED;
}

static enum fault in_environment(void)
{
    const uintptr_t *stack = __libc_stack_end;
    for (const char *const *at = (const char *const *)(stack + 1 + *stack + 1); *at != NULL; at++) {
        const char *name = after("HETERO_FAULT=", *at);
        if (name != NULL)
            return named(name);
    }
    return FAULT_NONE;
}

enum fault fault_chosen(void)
{
    static atomic_int chosen = UNREAD; /* every thread that writes it writes the same value */
    int fault = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (fault == UNREAD) {
        fault = in_environment();
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
