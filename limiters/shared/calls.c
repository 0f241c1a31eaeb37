/* Tells nested calls apart (calls.h). */
#include "driver.h"

__thread unsigned calls_within;
atomic_bool first_call_made;
atomic_ulong calls_begun, calls_ended;

bool no_other_thread_calls(unsigned long *begun_count)
{
    *begun_count = atomic_load(&calls_begun);
    return atomic_load(&calls_ended) + calls_within == *begun_count;
}

/* The child has no other threads, and so none of their calls. */
void calls_after_fork(void)
{
    atomic_store(&calls_ended, atomic_load(&calls_begun) - calls_within);
}

/* Where this thread was last called from by the driver. Launches come from there again and again, and to ask the loader
 * takes as long as a launch. */
static __thread const void *last_caller;

/* If the driver's function jumps to another one, the return address is in the limiter. */
bool is_the_drivers_call(const void *caller)
{
    bool is_drivers = caller == last_caller || IS_DRIVERS(caller);
    if (is_drivers)
        last_caller = caller;
    return is_drivers;
}
