/* The calls of a process that the driver makes within others (calls.h). */
#include "driver.h"

__thread unsigned calls_within;
atomic_bool first_call_made;

/* A function of the driver that jumps to another one leaves the address of our call of it. */
bool is_the_drivers_call(const void *caller)
{
    return library_calls(&driver_library, caller);
}
