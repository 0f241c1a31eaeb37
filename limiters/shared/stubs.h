/* The exported functions: one stub for every line of api.def. Included once, by each API's shim.c. */
#include "launch.h"

#include "driver.h"

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

#define OWN(name, parameters, arguments, body)                                                                         \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        call_begins();                                                                                                 \
        result_t answer = body AFTER(real, arguments);                                                                 \
        call_ends();                                                                                                   \
        return answer;                                                                                                 \
    }
#define OWN_IN(name, default_stream, parameters, arguments, body)                                                      \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        call_begins();                                                                                                 \
        result_t answer = body AFTER(real, AFTER(default_stream, arguments));                                          \
        call_ends();                                                                                                   \
        return answer;                                                                                                 \
    }
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
