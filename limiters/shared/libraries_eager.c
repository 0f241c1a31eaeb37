/* Libraries of APIs that load them at once and have no contexts (libraries.h). */
#include "libraries.h"

#include "local.h"

bool library_loaded(uint64_t library, uint64_t bytes, bool is_unread)
{
    (void)library, (void)bytes, (void)is_unread;
    return true;
}

bool library_used(uint64_t library)
{
    (void)library;
    return true;
}

bool library_is_unloaded(uint64_t library)
{
    (void)library;
    return false;
}

void library_unloaded(uint64_t library)
{
    (void)library;
}

void local_of_function(TYPE(function) function)
{
    (void)function;
}

void local_of_kernel(TYPE(kernel) kernel)
{
    (void)kernel;
}

void local_after_fork(void)
{
}

void *local_driver(unsigned row)
{
    (void)row;
    return NULL;
}
