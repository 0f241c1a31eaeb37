/* What light neighbours use of the device while we are charged by the clock. Of the governor's thread. */
#ifndef HETERO_NEIGHBOURS_H
#define HETERO_NEIGHBOURS_H

#include "governor_state.h"

/* We are charged by the clock from now on. Returns what they have used so far. */
uint64_t neighbours_begin(struct governor *governor);

/* What of the last `spent_ns` is left when they have had theirs, and the driver has gone over to them and back. They
 * say in steps what they used. */
uint64_t neighbours_leave(struct governor *governor, uint64_t spent_ns);

#endif
