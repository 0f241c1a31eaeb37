/* Faults: each takes one defence of the limiter out, to show that the test of that defence fails then.
 *
 * In the build with faults (-DFAULTS, make faults) the environment names the one that is on when the limiter is
 * loaded: HETERO_FAULT. A name that faults.def does not list ends the process. In every other build none is on:
 * FAULT(name) is a constant, and nothing is left of it in the object. A name that is not listed compiles in neither.
 *
 * FAULT_PAUSE(name) waits a while where a fault shows only if a signal or another thread comes in between.
 */
#ifndef HETERO_FAULT_H
#define HETERO_FAULT_H

enum fault {
    FAULT_NONE,
#define FAULT_NAME(name) FAULT_##name,
#include "faults.def"
#undef FAULT_NAME
    FAULT_UNLISTED,
};

#ifdef FAULTS
enum fault fault_chosen(void);
int fault_pause(void);
#define FAULT(name)       (fault_chosen() == FAULT_##name)
#define FAULT_PAUSE(name) ((void)(FAULT(name) && fault_pause()))
#else
#define FAULT(name)       (FAULT_##name == FAULT_NONE)
#define FAULT_PAUSE(name) ((void)FAULT(name))
#endif

#define FAULT_VALUE(name, right, wrong) (FAULT(name) ? (wrong) : (right))

#endif
