/* Kernels that spin until another launch of their grant is made, which their own charge keeps at the closed gate.
 *
 * No look tells such a kernel from one that computes. So where the device has not come further for a while, a launch
 * passes that it may wait for: one into another stream, or of another process of the grant.
 */
#ifndef HETERO_SPIN_H
#define HETERO_SPIN_H

#include "governor_state.h"

/* At each look at the open gate, and at each look at the closed one. `works`: something of this process is in flight
 * that does not stand at a wait. */
void spin_note(struct governor *governor, uint64_t now_ns, bool works);
void spin_pass(struct governor *governor, uint64_t now_ns, bool works);

#endif
