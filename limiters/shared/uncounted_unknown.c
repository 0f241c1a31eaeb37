/* Where no management library tells what a process holds, nothing is known beyond what is charged (uncounted.h). */
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

bool uncounted_settle(int device)
{
    (void)device;
    return true;
}

void code_loaded(uint64_t bytes)
{
    (void)bytes;
}

uint64_t stacks_of_calls(int device, bool mallocs, bool prints)
{
    (void)device, (void)mallocs, (void)prints;
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

bool uncounted_look(int device)
{
    (void)device;
    return true;
}

struct measured context_begins(int device)
{
    return (struct measured){.device = device};
}

void context_grew(const struct measured *measured, uint64_t *bytes)
{
    (void)measured, (void)bytes;
}
