/* How a program is known to need little of the device, and runs without a time slice (docs/decisions/arbiter.md, "Light
 * programs"). Of the governor's thread. */
#ifndef HETERO_LIGHT_RUN_H
#define HETERO_LIGHT_RUN_H

#include "governor_state.h"

/* With the gate open: hold a stream if it is time, of a program that launches in bursts only where one `begins`; and
 * what the last hold told. False: this is not the program that was known. */
void light_hold_now_and_then(struct governor *governor, uint64_t wait_ns, bool begins);
bool light_read_hold(struct governor *governor);

/* A time slice is over, in which so many launches were made, and was charged. `ran_ns` is 0 if others had work in
 * flight meanwhile, which keeps a program from what it would launch. What a light program was charged for those before
 * it was known to be one, while nobody else wanted the device, is given back. */
void light_learn_from(struct governor *governor, struct light_launches made, uint64_t ran_ns, uint64_t charged_ns);

/* How many launches were made by now. */
struct light_count light_count(struct governor *governor);

/* Whether it is to be timed in a time slice now, while those without one keep away; and that it was tried. */
bool light_wants_measure(struct governor *governor);
void light_measured(struct governor *governor);

/* Whether a program has no use for time slices but to be timed there. */
bool light_needs_no_slice(struct governor *governor);

/* Whether a program is let through beside whoever has the time slice. Beside high priority it is not. */
bool light_is(struct governor *governor);

/* Let it run until it is light no longer, or rests. */
void light_run(struct governor *governor);

#endif
