/* Counts the program's starts of NVML, so that it ends NVML for itself alone: the limiter asks it until the process
 * ends.
 */
#include "bodies.h"

#include "../core/fault.h"

#include <stdatomic.h>

static atomic_uint program_starts; /* that no end has followed; a child of fork keeps them, as NVML does */

static nvmlReturn_t started(nvmlReturn_t answer)
{
    if (answer == NVML_SUCCESS)
        atomic_fetch_add(&program_starts, 1);
    return answer;
}

nvmlReturn_t session_begins(nvmlReturn_t (*real)(void))
{
    return started(real());
}

nvmlReturn_t session_begins_with(nvmlReturn_t (*real)(unsigned), unsigned flags)
{
    return started(real(flags));
}

nvmlReturn_t session_ends(nvmlReturn_t (*real)(void))
{
    unsigned count = atomic_load(&program_starts);
    while (count > 0 && !atomic_compare_exchange_weak(&program_starts, &count, count - 1))
        ;
    return count > 0 || FAULT(surplus_ends_passed_on) ? real() : NVML_ERROR_UNINITIALIZED;
}
