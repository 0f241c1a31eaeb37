/* Of each thread (outside.h). */
#include "outside.h"

static __thread bool is_outside;

bool is_outside_runtime(void)
{
    return is_outside;
}

void set_outside_runtime(bool is_outside_now)
{
    is_outside = is_outside_now;
}
