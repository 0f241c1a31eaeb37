/* The memory ledger: bytes are reserved before the driver is asked and given back when it says no, so that the sum
 * over all threads and processes of a grant never passes the limit, not for a moment.
 */
#ifndef HETERO_LEDGER_H
#define HETERO_LEDGER_H

#include "region.h"

enum ledger_answer { LEDGER_GRANTED, LEDGER_OVER, LEDGER_BROKEN };

/* Reserve `bytes` on the grant's device `device` under `limit`. Looks for dead processes before it says OVER;
 * BROKEN when the region cannot be trusted (the caller refuses). */
enum ledger_answer ledger_reserve(struct region *region, unsigned device, uint64_t bytes, uint64_t limit);

/* The same, and a refusal is not counted as one. */
enum ledger_answer ledger_try(struct region *region, unsigned device, uint64_t bytes, uint64_t limit);

/* Whether `bytes` would be granted now. */
bool ledger_fits(struct region *region, unsigned device, uint64_t bytes, uint64_t limit);

/* Give back `bytes` that this process reserved. */
void ledger_release(struct region *region, unsigned device, uint64_t bytes);

/* Bytes that this process has given back so far, and those that the grant's others have, who may have ended: of use is
 * by how much they grow. False: the region cannot be trusted. */
bool ledger_returned(struct region *region, unsigned device, uint64_t *own, uint64_t *others);

/* Bytes that this process reserved and did not give back; and all that it has given back so far. */
uint64_t ledger_own(struct region *region, unsigned device, uint64_t *returned);

/* Change what this process says of itself (region.h). What the driver counts for it, and it neither was charged for nor
 * says, is taken for memory that got past the limiter. */
void ledger_say(struct region *region, enum hetero_said kind, unsigned device, int64_t change);

/* Bytes held by the live processes of the grant, with what root says they hold besides (grant.h, excess). */
uint64_t ledger_used(struct region *region, unsigned device);

#endif
