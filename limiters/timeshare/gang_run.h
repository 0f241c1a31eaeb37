/* How the governor of a gang's member runs (gang.h). Of the governor's thread. */
#ifndef HETERO_GANG_RUN_H
#define HETERO_GANG_RUN_H

#include "governor_state.h"

/* Whether the node gave the grant a row. */
bool gang_is(struct governor *governor);

/* Run with the gang until this process has been idle for a while. */
void gang_run(struct governor *governor);

#endif
