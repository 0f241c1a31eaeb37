/* Around the calls that begin and end a capture, for the bodies of them. */
#ifndef HETERO_SHARED_CAPTURE_H
#define HETERO_SHARED_CAPTURE_H

#include "types.h"
#include "launch.h"

/* Before and after the driver's call that begins a capture. `is_counted`: the first one counted it. `stream`: not NULL.
 */
bool capture_begins(stream_t stream);
result_t capture_began(result_t answer, stream_t stream, bool is_counted);

/* After the driver's call that ends a capture. */
result_t capture_ended(result_t answer, stream_t stream);

/* Before a stream waits for an event: it may join the event's capture. Ends with wait_leave (launch.h). `stream`: not
 * NULL. */
void event_wait_begins(struct wait_ticket *ticket, stream_t stream);

#define BEGIN_CAPTURE(call)                                                                                            \
    do {                                                                                                               \
        stream_t actual_stream = stream == NULL ? null_stream : stream;                                                \
        bool is_counted = capture_begins(actual_stream);                                                               \
        return capture_began(call, actual_stream, is_counted);                                                         \
    } while (0)

#endif
