/* What a program asks for and is told lies in its own memory, where another of its threads could change it between two
 * looks: so the limiter and the driver look at memory of ours. */
#ifndef HETERO_SHARED_ARGUMENTS_H
#define HETERO_SHARED_ARGUMENTS_H

#include "../core/fault.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* From here on `asked` points to what it points to now; NULL stays NULL. The fence keeps the compiler from looking at
 * the program's memory again. */
#define AS_IT_IS(asked)                                                                                                \
    typeof(*(asked)) asked##_now = (asked) == NULL ? (typeof(*(asked))){0} : *(asked);                                 \
    atomic_signal_fence(memory_order_seq_cst);                                                                         \
    if (!FAULT(arguments_read_twice))                                                                                  \
    asked = (asked) == NULL ? NULL : &asked##_now

/* The stream that a launch's configuration names; to the end of the function `asked` points to what it points to now.
 */
#define STREAM_AS_IT_IS(asked, stream)                                                                                 \
    ({                                                                                                                 \
        if ((asked) != NULL && !FAULT(streams_read_twice))                                                             \
            asked = memcpy(__builtin_alloca(sizeof *(asked)), asked, sizeof *(asked));                                 \
        atomic_signal_fence(memory_order_seq_cst);                                                                     \
        (asked) == NULL ? NO_STREAM : DEFAULT((asked)->stream);                                                        \
    })

/* The same of more than one, in the heap; NULL for none, and where there is no memory. */
static inline void *as_they_are(const void *asked, size_t bytes)
{
    void *now = bytes == 0 ? NULL : malloc(bytes);
    if (now != NULL)
        memcpy(now, asked, bytes);
    atomic_signal_fence(memory_order_seq_cst);
    return now;
}

/* Tell the program so many bytes, if it wants to know. */
static inline void show_made(uintptr_t to, const void *made, size_t bytes)
{
    if (bytes > 0 && to != 0)
        memcpy((void *)to, made, bytes);
}

#endif
