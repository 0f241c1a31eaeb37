/* How deep in calls of the program each thread is, and the first of them.
 *
 * CALLS_NEST (types.h) says of an API that its functions call each other by their exported names. What is called within
 * a call of the program's is part of that call, and so are the limiter's own. Such an API has no function that all
 * programs begin with either: what a process does first it does at its first call. Of the others nothing is nested, and
 * every program begins with the call that `initialise` answers (shim.c).
 */
#ifndef HETERO_SHARED_CALLS_H
#define HETERO_SHARED_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

extern __thread unsigned calls_within __attribute__((visibility("hidden")));
extern atomic_bool first_call_made __attribute__((visibility("hidden")));
extern void (*at_first_call)(void) __attribute__((visibility("hidden")));

static inline bool is_nested(void)
{
    return CALLS_NEST && calls_within > 0;
}

static inline void call_begins(void)
{
    if (!CALLS_NEST)
        return;
    calls_within++;
    if (__builtin_expect(!atomic_load_explicit(&first_call_made, memory_order_relaxed), 0))
        at_first_call();
}

static inline void call_ends(void)
{
    if (CALLS_NEST)
        calls_within--;
}

#endif
