/* Asks the driver for a device's power on a thread of its own: the driver may take its time to answer. 130 ms have been
 * seen while other programs started and ended.
 */
#ifndef HETERO_POWER_WATCH_H
#define HETERO_POWER_WATCH_H

#include "engine.h"
#include "power.h"

struct power_watch {
    const struct engine *engine;
    const char *uuid;
    _Atomic uint32_t state;       /* futex: what asks (power_watch.c) */
    bool answered;                /* the driver has ever known the power; of the thread that asks */
    struct power_reading reading; /* written by the thread that asks, while it asks */
};

/* Make a watch over the device of this UUID, which asks for nothing yet. */
void power_watch_make(struct power_watch *watch, const struct engine *engine, const char *uuid);

/* From now on power_watch_look asks. Not called for a neutral card, whose power is not asked for. */
void power_watch_begin(struct power_watch *watch);

/* Start the thread, if it has begun. Where that fails, power_watch_look goes on asking by itself. */
void power_watch_start(struct power_watch *watch);

/* The driver's answer, once; NULL: there is none yet, or there never will be. Have it asked for the next one. */
const struct power_reading *power_watch_look(struct power_watch *watch);

/* The answer has been read, and may be overwritten. */
void power_watch_done(struct power_watch *watch);

/* At exit: wait for a driver that is being asked, a second at most. */
void power_watch_retire(struct power_watch *watch);

#endif
