/* How deep in calls of the program each thread is, and the first of them.
 *
 * Functions of a driver may call each other by their exported names, which lead here: AMD's hipMemAllocPitch calls
 * hipMallocPitch. What the driver calls within a call of the program's is part of that call, and so is what it calls
 * for the limiter. Who calls is told by the return address, too: a signal handler that interrupts a call, or leaves it
 * for good by siglongjmp, is the program.
 *
 * CALLS_NEST (types.h) says whether that is so of launches, too, and of what the time sharing calls. What a launch
 * takes of the device is charged once either way. ANY_CALL_IS_FIRST says of an API that it has no function that all
 * programs begin with: what a process does first it does at its first call. Other programs begin with the call that
 * `initialise` answers (shim.c).
 */
#ifndef HETERO_SHARED_CALLS_H
#define HETERO_SHARED_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

extern __thread unsigned calls_within __attribute__((visibility("hidden")));
extern atomic_bool first_call_made __attribute__((visibility("hidden")));

/* Calls of all threads, but for launches. */
extern atomic_ulong calls_begun __attribute__((visibility("hidden")));
extern atomic_ulong calls_ended __attribute__((visibility("hidden")));

/* Whether no other thread is in a call; and none was since, if `begun` is what calls_begun still is. */
bool no_other_thread_calls(unsigned long *begun_count);

void calls_after_fork(void);

/* What shim.c has for the first call, in a section of its own: libraries make calls in constructors that run before any
 * of ours. */
extern void (*const __start_hetero_first_call[])(void) __attribute__((visibility("hidden")));
#define AT_FIRST_CALL(function)                                                                                        \
    static void (*const at_first_call)(void) __attribute__((used, section("hetero_first_call"))) = function

bool is_the_drivers_call(const void *caller);

/* Whether the call that returns to `caller` is part of another one. */
static inline bool is_nested(const void *caller)
{
    return __builtin_expect(calls_within > 0, 0) && is_the_drivers_call(caller);
}

static inline void note_first_call(void)
{
    if (ANY_CALL_IS_FIRST && __builtin_expect(!atomic_load_explicit(&first_call_made, memory_order_relaxed), 0))
        __start_hetero_first_call[0]();
}

static inline void call_begins(void)
{
    calls_within++;
    atomic_fetch_add(&calls_begun, 1);
    note_first_call();
}

static inline void call_ends(void)
{
    atomic_fetch_add(&calls_ended, 1);
    calls_within--;
}

/* The same of launches and of what the time sharing calls. */
static inline bool is_nested_work(const void *caller)
{
    return CALLS_NEST && is_nested(caller);
}

static inline void work_begins(void)
{
    if (CALLS_NEST) {
        calls_within++;
        note_first_call();
    }
}

static inline void work_ends(void)
{
    if (CALLS_NEST)
        calls_within--;
}

#endif
