/* What the time sharing needs of a driver and of time; limiters/<api> supplies it, the unit tests supply a simulated
 * one.
 *
 * A fence is a point in a stream's order that can be asked whether the device has passed it: an event without timing.
 * Contexts and streams are the driver's own handles and mean nothing here.
 */
#ifndef HETERO_ENGINE_H
#define HETERO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

/* Since then. What another thread or process wrote may be of a moment after this one read its clock: that is no time
 * ago. */
static inline uint64_t elapsed(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns ? now_ns - since_ns : 0;
}

struct power_reading;

struct engine {
    uint64_t (*now)(void);                 /* CLOCK_MONOTONIC, ns */
    void (*pause)(uint64_t ns);            /* sleep about so long */
    void (*begin)(void);                   /* the governor's thread calls this first */
    void *(*stream_context)(void *stream); /* the context of a stream that has one of its own */
    void *(*make)(void *context);          /* a new fence; NULL when none can be had */
    void (*drop)(void *fence);
    void (*forget)(void *fence); /* the same of one that went with its context: the driver is not called */
    /* After everything that is in the stream now. False: a capture forbids it until it ends. */
    bool (*set)(void *fence, void *stream);
    bool (*passed)(void *fence); /* one that cannot be asked, or could not be set, counts as passed */
    /* A hold: what comes into a stream from now on waits for `release`, which calls no driver, and the device times how
     * long it takes up to the last stamp; without `stalls` it is only timed. `make_hold` is NULL where the driver has
     * none. */
    void *(*make_hold)(void *context);
    void (*drop_hold)(void *hold);
    bool (*hold)(void *hold, void *stream, bool stalls); /* false: a capture forbids it, or it failed */
    void (*stamp)(void *hold, void *stream);
    void (*release)(void *hold);
    bool (*held_ns)(void *hold, uint64_t *ns); /* false: the device has not passed the mark */
    /* What the driver calls the model of a device, and its power. False: that is not known. */
    bool (*device_name)(const char *uuid, char *name, size_t size);
    bool (*power)(const char *uuid, struct power_reading *reading);
};

#endif
