/* Launches on several devices in one call. */
#include "bodies.h"

#include "arguments.h"
#include "launch.h"

#include "../core/fault.h"

#define ON_SEVERAL(body, launch_t, count_t)                                                                            \
    result_t body(result_t (*real)(launch_t *, count_t, unsigned), launch_t *launches, count_t count, unsigned flags)  \
    {                                                                                                                  \
        struct launch_ticket tickets[HETERO_MAX_DEVICES];                                                              \
        launch_t launches_copy[HETERO_MAX_DEVICES];                                                                    \
        count_t entered_count = 0;                                                                                     \
        result_t answer = RESULT_OK;                                                                                   \
        if (launches == NULL ||                                                                                        \
            (unsigned)count > HETERO_MAX_DEVICES) /* at most one for each device, and there are no more */             \
            return ERROR(INVALID_VALUE);                                                                               \
        memcpy(launches_copy, launches, (size_t)count * sizeof *launches);                                             \
        atomic_signal_fence(memory_order_seq_cst);                                                                     \
        while (entered_count < FAULT_VALUE(one_device_gated, count, 1) && answer == RESULT_OK) {                       \
            stream_t stream = launches_copy[entered_count].hStream;                                                    \
            answer = launch_enter(&tickets[entered_count], stream == NULL ? STREAM_LEGACY : stream);                   \
            entered_count += answer == RESULT_OK;                                                                      \
        }                                                                                                              \
        if (answer == RESULT_OK)                                                                                       \
            answer = real(launches_copy, count, flags);                                                                \
        while (entered_count > 0) /* whatever it answered: some may have been made */                                  \
            launch_leave(&tickets[--entered_count], RESULT_OK);                                                        \
        return answer;                                                                                                 \
    }

ON_SEVERAL(launch_on_several, NAMED(LAUNCH_PARAMS), LAUNCH_COUNT)
#ifdef LAUNCHED_FUNCTION /* where functions are launched by a call of their own */
ON_SEVERAL(launch_functions_on_several, LAUNCHED_FUNCTION, unsigned)
#endif
