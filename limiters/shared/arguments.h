/* A call's arguments and outputs lie in the program's memory, where another thread of the program could change them
 * between two reads. So the limiter and the driver read and write copies. */
#ifndef HETERO_SHARED_ARGUMENTS_H
#define HETERO_SHARED_ARGUMENTS_H

#include "../core/fault.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Make the pointer `argument` point to a copy; NULL stays NULL. The fence keeps the compiler from reading the program's
 * memory again. */
#define COPY_ARGUMENT(argument)                                                                                        \
    typeof(*(argument)) argument##_copy = (argument) == NULL ? (typeof(*(argument))){0} : *(argument);                 \
    atomic_signal_fence(memory_order_seq_cst);                                                                         \
    if (!FAULT(arguments_read_twice))                                                                                  \
    argument = (argument) == NULL ? NULL : &argument##_copy

/* The stream that a launch's configuration names. `config` then points to a copy, until the function returns. */
#define STREAM_OF_COPY(config, stream)                                                                                 \
    ({                                                                                                                 \
        if ((config) != NULL && !FAULT(streams_read_twice))                                                            \
            config = memcpy(__builtin_alloca(sizeof *(config)), config, sizeof *(config));                             \
        atomic_signal_fence(memory_order_seq_cst);                                                                     \
        (config) == NULL ? NO_STREAM : DEFAULT((config)->stream);                                                      \
    })

/* A copy of an array on the heap; NULL for no bytes, or without memory. */
static inline void *copy_arguments(const void *source, size_t bytes)
{
    void *copy = bytes == 0 ? NULL : malloc(bytes);
    if (copy != NULL)
        memcpy(copy, source, bytes);
    atomic_signal_fence(memory_order_seq_cst);
    return copy;
}

/* Copy an output to the program's memory; `destination` is its address there, 0: the program passed none. */
static inline void publish_output(uintptr_t destination, const void *source, size_t bytes)
{
    if (bytes > 0 && destination != 0)
        memcpy((void *)destination, source, bytes);
}

#endif
