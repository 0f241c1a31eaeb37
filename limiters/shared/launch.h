/* How a launch passes the gate of its device. */
#ifndef HETERO_SHARED_LAUNCH_H
#define HETERO_SHARED_LAUNCH_H

#include "governors.h"

#include "../core/tenant.h"

#include "types.h"

struct launch_ticket {
    struct governor *governor; /* NULL: not gated */
    bool is_recorded;          /* because it is captured */
    unsigned abandoned_waits;  /* by recording_begins */
    struct stream_key key;
};

/* process.launch_devices: how many devices' terms a launch has to look at. All of the grant's, once it is known that
 * this process sees no others; NO_GRANT; or 0 until that is known. Every thread that writes it writes the same. */
enum { NO_GRANT = -1 };

/* Whether nothing that this process could launch to is limited. False where that is not known yet. Part of each stub:
 * around a call of ours every argument of the launch would be saved. */
static inline __attribute__((always_inline)) bool launch_is_free(void)
{
    int device_count = atomic_load_explicit(&process.launch_devices, memory_order_acquire);
    if (__builtin_expect(device_count <= 0, 0))
        return device_count == NO_GRANT;
    const struct hetero_grant_device *terms = tenant_terms(0), *end = terms + device_count;
    do
        if (__builtin_expect(terms_limit_core(terms), 0))
            return false;
    while (++terms < end);
    return true;
}

/* Find out as far as it can be told, then say the same. */
bool launch_count_devices(void);

/* Wait until a launch into this stream may go ahead; say what the driver answered. */
result_t launch_enter(struct launch_ticket *ticket, stream_t stream);
void launch_leave(const struct launch_ticket *ticket, result_t answer);

/* The stream as its gate knows it. */
struct stream_key stream_key(stream_t stream);

#endif
