/* Reads which fault is on (fault.h); empty but in the build with faults. */
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

/* The loader's pointer to what the kernel put on the first stack: the number of arguments, the arguments, NULL, the
 * environment. It is read before libc is initialised, when no function of libc may be called. */
extern const uintptr_t *__libc_stack_end;

/* The rest of a text after `prefix`; NULL: the text does not begin with it. */
static const char *text_after(const char *prefix, const char *text)
{
    while (*prefix != '\0' && *prefix == *text)
        prefix++, text++;
    return *prefix == '\0' ? text : NULL;
}

static enum fault fault_named(const char *name)
{
    if (*name == '\0')
        return FAULT_NONE;
    for (int fault = FAULT_NONE + 1; fault < FAULT_UNLISTED; fault++) {
        const char *rest = text_after(names[fault], name);
        if (rest != NULL && *rest == '\0')
            return (enum fault)fault;
    }
    return FAULT_UNLISTED;
}

static enum fault fault_in_environment(void)
{
    const uintptr_t *first_stack = __libc_stack_end;
    for (const char *const *variable = (const char *const *)(first_stack + 1 + *first_stack + 1); *variable != NULL;
         variable++) {
        const char *value = text_after("HETERO_FAULT=", *variable);
        if (value != NULL)
            return fault_named(value);
    }
    return FAULT_NONE;
}

enum fault fault_chosen(void)
{
    static atomic_int chosen = UNREAD; /* every thread that writes it writes the same value */
    int fault = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (fault == UNREAD) {
        fault = fault_in_environment();
        atomic_store_explicit(&chosen, fault, memory_order_relaxed);
    }
    return (enum fault)fault;
}

int fault_pause(void)
{
    const struct timespec sleep_50_us = {.tv_nsec = 50000};
    /* Spin inside the limiter, so that the signal handlers of the tests in tests/attacks interrupt its code here. */
    for (volatile int spin = 0; spin < 20000; spin++)
        continue;
    nanosleep(&sleep_50_us, NULL);
    return 1;
}

__attribute__((constructor)) static void refuse_unlisted(void)
{
    static const char text[] = "hetero: HETERO_FAULT names no fault that core/faults.def lists\n";
    if (fault_chosen() == FAULT_UNLISTED && write(STDERR_FILENO, text, sizeof text - 1) != 0)
        syscall(SYS_exit_group, 2);
}
#endif
