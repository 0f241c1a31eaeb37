/* Defines the exported functions: one stub for every line of api.def. Included once for each API, by shim.c. */
#include "launch.h"

#include "arguments.h"
#include "driver.h"

#include "../core/fault.h"

#define EXPORT          __attribute__((visibility("default")))
#define DEFAULT(stream) ((stream) == NULL ? null_stream : (stream))
#define NO_STREAM       null_stream

/* Call the driver directly if nothing is limited, or if the driver's own code calls within a call of the program. That
 * costs this one branch. Without the driver's function the error code says so. */
#define PASS_IF_FREE(real, arguments)                                                                                  \
    do {                                                                                                               \
        if (__builtin_expect(real == NULL, 0))                                                                         \
            return RESULT_NO_FUNCTION;                                                                                 \
        if (__builtin_expect(tenancy() == TENANCY_FREE || is_nested(__builtin_return_address(0)), 1))                  \
            return real arguments;                                                                                     \
    } while (0)

#define AFTER(first, arguments) (first UNWRAP arguments)
#define UNWRAP(...)             , ##__VA_ARGS__

/* A call that makes an object writes its handle to its first argument. The limiter passes a buffer of its own, and
 * copies the handle to the program's memory once it is noted. In the program's memory another thread could replace the
 * handle meanwhile, and the limiter would note the wrong one. OUTPUT_TYPES of each API's types.h are the types of such
 * handles. */
#define FIRST(...)                   FIRST_OF(, ##__VA_ARGS__, no_argument)
#define FIRST_OF(before, first, ...) first
#define OUTPUT_BYTES(output)         typeof(output *) : sizeof(output),
#define PRIVATE_OUTPUT(output)                                                                                         \
    typeof(output *)                                                                                                   \
        : (output *)(program_output == 0                                                                               \
                         ? NULL                                                                                        \
                         : FAULT_VALUE(made_names_unguarded, (void *)private_output, (void *)program_output)),
#define WITH_PRIVATE_OUTPUT(first, call)                                                                               \
    ({                                                                                                                 \
        const int no_argument = 0;                                                                                     \
        const uintptr_t program_output = (uintptr_t)first;                                                             \
        uint64_t private_output[4] = {0};                                                                              \
        const size_t output_bytes = _Generic(first, OUTPUT_TYPES(OUTPUT_BYTES) default: (size_t)0);                    \
        result_t call_answer;                                                                                          \
        typeof(first) program_argument = first;                                                                        \
        {                                                                                                              \
            typeof(program_argument) first = _Generic(program_argument,                                                \
                OUTPUT_TYPES(PRIVATE_OUTPUT) default: program_argument);                                               \
            (void)first;                                                                                               \
            call_answer = call;                                                                                        \
        }                                                                                                              \
        (void)no_argument;                                                                                             \
        if (call_answer == RESULT_OK && !FAULT(made_names_unguarded))                                                  \
            publish_output(program_output, private_output, output_bytes);                                              \
        call_answer;                                                                                                   \
    })

#define OWN(name, parameters, arguments, body)                                                                         \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        call_begins();                                                                                                 \
        result_t answer = WITH_PRIVATE_OUTPUT(FIRST arguments, body AFTER(real, arguments));                           \
        call_ends();                                                                                                   \
        return answer;                                                                                                 \
    }
#define OWN_IN(name, default_stream, parameters, arguments, body)                                                      \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        call_begins();                                                                                                 \
        result_t answer = WITH_PRIVATE_OUTPUT(FIRST arguments, body AFTER(real, AFTER(default_stream, arguments)));    \
        call_ends();                                                                                                   \
        return answer;                                                                                                 \
    }
/* The stream of a line of api.def. With the fault, its call does not pass the gate. */
#define UNLESS_FAULT(fault, call, stream)                                                                              \
    ({                                                                                                                 \
        if (FAULT(fault))                                                                                              \
            return call;                                                                                               \
        stream;                                                                                                        \
    })
/* While no device is limited in core the stub jumps to the driver's function with its arguments and stack unchanged,
 * and else to `limited`. */
#define JUMP_UNLESS_LIMITED(name, parameters, arguments, limited)                                                      \
    EXPORT result_t name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = (typeof(&name))symbol_known(&driver_rows[ROW_##name]);                                    \
        if (__builtin_expect(real == NULL || !launch_is_free(), 0))                                                    \
            real = limited;                                                                                            \
        return real arguments;                                                                                         \
    }
/* What both begin with: the driver's function, or its answer where nothing is to be done. */
#define BEGIN_LIMITED(name, arguments)                                                                                 \
    typeof(&name) real = REAL(name);                                                                                   \
    if (__builtin_expect(real == NULL, 0))                                                                             \
        return RESULT_NO_FUNCTION;                                                                                     \
    if (__builtin_expect(process.launch_device_count <= 0, 0) && launch_count_devices())                               \
        return real arguments;                                                                                         \
    if (is_nested_work(__builtin_return_address(0)))                                                                   \
    return real arguments
/* Device work; `enter` waits for the gate. */
#define ENTERED_IN(name, default_stream, parameters, arguments, enter)                                                 \
    static __attribute__((noinline)) result_t gated_##name parameters                                                  \
    {                                                                                                                  \
        BEGIN_LIMITED(name, arguments);                                                                                \
        const stream_t null_stream = default_stream;                                                                   \
        struct launch_ticket ticket;                                                                                   \
        result_t answer = enter;                                                                                       \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        work_begins();                                                                                                 \
        answer = real arguments;                                                                                       \
        work_ends();                                                                                                   \
        launch_leave(&ticket, answer);                                                                                 \
        return answer;                                                                                                 \
    }                                                                                                                  \
    JUMP_UNLESS_LIMITED(name, parameters, arguments, gated_##name)
/* Device work: it waits for the gate. */
#define GATED_IN(name, default_stream, parameters, arguments, stream)                                                  \
    ENTERED_IN(name, default_stream, parameters, arguments, launch_enter(&ticket, stream))
/* A copy of so many bytes. */
#define COPY_IN(name, default_stream, parameters, arguments, stream, bytes)                                            \
    ENTERED_IN(name, default_stream, parameters, arguments, ({                                                         \
                   gate_makes_small((bytes) <= LAUNCH_SMALL_BYTES ? &ticket.key : NULL);                               \
                   result_t entered = launch_enter(&ticket, stream);                                                   \
                   gate_makes_small(NULL);                                                                             \
                   entered;                                                                                            \
               }))
/* An operation that waits: it is announced to the gate, and passes none. */
#define WAITS_IN(name, default_stream, parameters, arguments, stream)                                                  \
    static __attribute__((noinline)) result_t announced_##name parameters                                              \
    {                                                                                                                  \
        BEGIN_LIMITED(name, arguments);                                                                                \
        const stream_t null_stream = default_stream;                                                                   \
        struct wait_ticket ticket;                                                                                     \
        wait_enter(&ticket, stream);                                                                                   \
        work_begins();                                                                                                 \
        result_t answer = real arguments;                                                                              \
        work_ends();                                                                                                   \
        wait_leave(&ticket, answer);                                                                                   \
        return answer;                                                                                                 \
    }                                                                                                                  \
    JUMP_UNLESS_LIMITED(name, parameters, arguments, announced_##name)
