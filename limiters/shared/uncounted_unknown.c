/* Without a management library that reports a process's memory, no uncounted memory is charged (uncounted.h). */
#include "early.h"
#include "uncounted.h"

void early_prepare(void)
{
}

void unseen_add(int device, int64_t bytes)
{
    (void)device, (void)bytes;
}

int64_t unseen_bytes(int device)
{
    (void)device;
    return 0;
}

void uncounted_after_fork(void)
{
}

bool largest_sizes_are_charged(int device)
{
    (void)device;
    return false;
}

bool uncounted_settle(int device)
{
    (void)device;
    return true;
}

void code_loaded(uint64_t bytes)
{
    (void)bytes;
}

uint64_t stack_bytes_of_calls(int device, bool calls_malloc, bool calls_printf)
{
    (void)device, (void)calls_malloc, (void)calls_printf;
    return 0;
}

void code_refused(uint64_t bytes)
{
    (void)bytes;
}

void context_over(context_t context)
{
    (void)context;
}

bool uncounted_check_rarely(int device)
{
    (void)device;
    return true;
}

struct driver_baseline context_begins(int device)
{
    return (struct driver_baseline){.device = device};
}

void context_grew(const struct driver_baseline *baseline, uint64_t *bytes)
{
    (void)baseline, (void)bytes;
}
