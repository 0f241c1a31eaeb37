/* Counts how deep in driver calls each thread is, and notes the process's first call.
 *
 * A driver's functions may call each other by their exported names, which the limiter answers: AMD's hipMemAllocPitch
 * calls hipMallocPitch. A call that the driver makes within another call is nested: it is part of the outer call and
 * not charged. The return address tells it apart from a call of the program's in a signal handler, which may interrupt
 * a call, or leave it for good by siglongjmp.
 *
 * CALLS_NEST (types.h): launches and the calls of the time sharing may nest, too. A launch is charged once either way.
 * ANY_CALL_IS_FIRST: the API has no function that every program calls first, so the limiter prepares itself at the
 * first call of any function. Otherwise it does so in `initialise` (visible.c).
 */
#ifndef HETERO_SHARED_CALLS_H
#define HETERO_SHARED_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

extern __thread unsigned calls_within __attribute__((visibility("hidden")));
extern atomic_bool first_call_made __attribute__((visibility("hidden")));

/* Calls of all threads that began and that ended, without launches. */
extern atomic_ulong calls_begun __attribute__((visibility("hidden")));
extern atomic_ulong calls_ended __attribute__((visibility("hidden")));

/* Whether no other thread is in a call. If calls_begun is `begun_count` later, none has entered one since. */
bool no_other_thread_calls(unsigned long *begun_count);

void calls_after_fork(void);

/* start.c's function for the first call, in a section of its own: other libraries make calls in constructors that run
 * before any of the limiter's. */
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

/* The same for launches and for the calls of the time sharing. */
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
