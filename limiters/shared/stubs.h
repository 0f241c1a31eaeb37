/* The exported functions: one stub for every line of api.def. Included once, by each API's shim.c. */
#include "launch.h"

#include "arguments.h"
#include "driver.h"

#include "../core/fault.h"

#define EXPORT          __attribute__((visibility("default")))
#define DEFAULT(stream) ((stream) == NULL ? none : (stream))
#define NO_STREAM       none

/* Not limited, or called by the driver's own code for a call that is: straight through, at the cost of this one branch.
 * A driver without the function says so. */
#define PASS_IF_FREE(real, arguments)                                                                                  \
    do {                                                                                                               \
        if (__builtin_expect(real == NULL, 0))                                                                         \
            return RESULT_NO_FUNCTION;                                                                                 \
        if (__builtin_expect(tenancy() == TENANCY_FREE || is_nested(__builtin_return_address(0)), 1))                  \
            return real arguments;                                                                                     \
    } while (0)

#define AFTER(first, arguments) (first UNWRAP arguments)
#define UNWRAP(...)             , ##__VA_ARGS__

/* A call writes the name of what it makes into memory of ours, and that goes into the program's when it is noted: there
 * another thread could put another name meanwhile, which would be given back in place of this one. MADE_TYPES of each
 * API's types.h are what names such calls write by their first argument. */
#define FIRST(...)                   FIRST_OF(, ##__VA_ARGS__, nothing)
#define FIRST_OF(before, first, ...) first
#define BYTES_MADE(made)             typeof(made *) : sizeof(made),
#define OURS_OF(made)                                                                                                  \
    typeof(made *) : (made *)(shown == 0 ? NULL : FAULT_VALUE(made_names_unguarded, (void *)ours_made, (void *)shown)),
#define MAKING(first, call)                                                                                            \
    ({                                                                                                                 \
        const int nothing = 0;                                                                                         \
        const uintptr_t shown = (uintptr_t)first;                                                                      \
        uint64_t ours_made[4] = {0};                                                                                   \
        const size_t bytes_made = _Generic(first, MADE_TYPES(BYTES_MADE) default: (size_t)0);                          \
        result_t made_answer;                                                                                          \
        typeof(first) as_asked = first;                                                                                \
        {                                                                                                              \
            typeof(as_asked) first = _Generic(as_asked, MADE_TYPES(OURS_OF) default: as_asked);                        \
            (void)first;                                                                                               \
            made_answer = call;                                                                                        \
        }                                                                                                              \
        (void)nothing;                                                                                                 \
        if (made_answer == RESULT_OK && !FAULT(made_names_unguarded))                                                  \
            show_made(shown, ours_made, bytes_made);                                                                   \
        made_answer;                                                                                                   \
    })

#define OWN(name, parameters, arguments, body)                                                                         \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        call_begins();                                                                                                 \
        result_t answer = MAKING(FIRST arguments, body AFTER(real, arguments));                                        \
        call_ends();                                                                                                   \
        return answer;                                                                                                 \
    }
#define OWN_IN(name, default_stream, parameters, arguments, body)                                                      \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        call_begins();                                                                                                 \
        result_t answer = MAKING(FIRST arguments, body AFTER(real, AFTER(default_stream, arguments)));                 \
        call_ends();                                                                                                   \
        return answer;                                                                                                 \
    }
/* A stream of a line of api.def whose call a fault lets past the gate. */
#define UNLESS_FAULT(fault, call, stream)                                                                              \
    ({                                                                                                                 \
        if (FAULT(fault))                                                                                              \
            return call;                                                                                               \
        stream;                                                                                                        \
    })
/* While no device is limited in core the stub jumps to the driver's function, arguments and stack as they came. */
#define GATED_IN(name, default_stream, parameters, arguments, stream)                                                  \
    static __attribute__((noinline)) result_t gated_##name parameters                                                  \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        if (__builtin_expect(real == NULL, 0))                                                                         \
            return RESULT_NO_FUNCTION;                                                                                 \
        if (__builtin_expect(process.launch_devices <= 0, 0) && launch_look())                                         \
            return real arguments;                                                                                     \
        if (is_nested_work(__builtin_return_address(0)))                                                               \
            return real arguments;                                                                                     \
        const stream_t none = default_stream;                                                                          \
        struct launch_ticket ticket;                                                                                   \
        result_t answer = launch_enter(&ticket, stream);                                                               \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        work_begins();                                                                                                 \
        answer = real arguments;                                                                                       \
        work_ends();                                                                                                   \
        launch_leave(&ticket, answer);                                                                                 \
        return answer;                                                                                                 \
    }                                                                                                                  \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = (typeof(&name))symbol_known(&driver_rows[ROW_##name]);                                    \
        if (__builtin_expect(real == NULL || !launch_is_free(), 0))                                                    \
            real = gated_##name;                                                                                       \
        return real arguments;                                                                                         \
    }
