/* Launches to several devices in one call. */
#include "bodies.h"

#include "launch.h"

result_t launch_on_several(result_t (*real)(NAMED(LAUNCH_PARAMS) *, LAUNCH_COUNT, unsigned),
                           NAMED(LAUNCH_PARAMS) *launches, LAUNCH_COUNT count, unsigned flags)
{
    struct launch_ticket tickets[HETERO_MAX_DEVICES];
    LAUNCH_COUNT entered = 0;
    result_t answer = RESULT_OK;
    if (launches == NULL ||
        (unsigned)count > HETERO_MAX_DEVICES) /* at most one for each device, and there are no more */
        return ERROR(INVALID_VALUE);
    while (entered < count && answer == RESULT_OK) {
        stream_t stream = launches[entered].hStream;
        answer = launch_enter(&tickets[entered], stream == NULL ? STREAM_LEGACY : stream);
        entered += answer == RESULT_OK;
    }
    if (answer == RESULT_OK)
        answer = real(launches, count, flags);
    while (entered > 0)
        launch_leave(&tickets[--entered]);
    return answer;
}
