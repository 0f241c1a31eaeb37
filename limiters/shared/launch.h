/* How a launch passes the gate of its device. */
#ifndef HETERO_SHARED_LAUNCH_H
#define HETERO_SHARED_LAUNCH_H

#include "governors.h"

#include "../core/tenant.h"

#include "types.h"

struct launch_ticket {
    struct governor *governor;     /* whose gate the launch passed; NULL: none */
    bool is_recorded;              /* it is captured, and passed no gate */
    unsigned abandoned_wait_count; /* from recording_begins(), for recording_ends() */
    struct stream_key key;         /* of the launch's stream */
};

/* process.launch_device_count: how many devices' terms a launch has to check. It is the number of the grant's devices,
 * once it is known that this process sees no others; NO_GRANT; or 0 until then. Every thread that writes it writes the
 * same.
 */
enum { NO_GRANT = -1 };

/* Whether no device that this process could launch to is limited in core. False if that is not known yet. It is inlined
 * into each stub, because a call would save every argument of the launch. */
static inline __attribute__((always_inline)) bool launch_is_free(void)
{
    int device_count = atomic_load_explicit(&process.launch_device_count, memory_order_acquire);
    if (__builtin_expect(device_count <= 0, 0))
        return device_count == NO_GRANT;
    const struct hetero_grant_device *terms = tenant_terms(0), *end = terms + device_count;
    do
        if (__builtin_expect(terms_limit_core(terms), 0))
            return false;
    while (++terms < end);
    return true;
}

/* Set process.launch_device_count if possible, then return launch_is_free(). */
bool launch_count_devices(void);

/* A copy of no more bytes is a small one (gate_makes_small). */
#define LAUNCH_SMALL_BYTES (UINT64_C(64) << 10)

/* Wait until a launch into this stream may go ahead; pass on the driver's answer. */
result_t launch_enter(struct launch_ticket *ticket, stream_t stream);
void launch_leave(const struct launch_ticket *ticket, result_t answer);

/* An operation that waits, and that computes nothing, is put into this stream (gate_begin_wait); it passes no gate. */
struct wait_ticket {
    struct governor *governor; /* NULL: nothing is to be told of it */
    struct gate_wait wait;
};
void wait_enter(struct wait_ticket *ticket, stream_t stream);
void wait_leave(const struct wait_ticket *ticket, result_t answer);

/* The same of a wait for an event. Nothing is told of it where all events are of this process, and no stream of it
 * stands at a wait: then the device works for what is waited for. */
void event_wait_enter(struct wait_ticket *ticket, stream_t stream);

/* The key by which a gate knows a stream. */
struct stream_key stream_key(stream_t stream);

#endif
