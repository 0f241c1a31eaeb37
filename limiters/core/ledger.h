/* The memory ledger. Bytes are reserved before the driver allocates and released if it fails. So the sum over all
 * threads and processes of a grant never exceeds the limit.
 */
#ifndef HETERO_LEDGER_H
#define HETERO_LEDGER_H

#include "region.h"

enum ledger_answer { LEDGER_GRANTED, LEDGER_OVER, LEDGER_BROKEN };

/* Reserve `bytes` on the grant's device `device` under `limit_bytes`. OVER: they do not fit, also without the bytes of
 * dead processes. BROKEN: the region cannot be used, and the caller refuses. */
enum ledger_answer ledger_reserve(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes);

/* The same, but a refusal is not counted in denied_allocation_count. */
enum ledger_answer ledger_reserve_if_free(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes);

/* Whether `bytes` would be granted now. */
bool ledger_fits(struct region *region, unsigned device, uint64_t bytes, uint64_t limit_bytes);

/* Give back `bytes` that this process reserved. */
void ledger_release(struct region *region, unsigned device, uint64_t bytes);

/* Bytes that this process has released so far, and bytes that the grant's other processes have, ended ones included.
 * Callers use only the growth of both. False: the region cannot be used. */
bool ledger_returned(struct region *region, unsigned device, uint64_t *own_bytes, uint64_t *others_bytes);

/* Bytes that this process reserved and did not release; and all bytes that it has released so far. */
uint64_t ledger_own(struct region *region, unsigned device, uint64_t *returned_bytes);

/* Change one of this process's reports (region.h), in the unit of its kind. Memory that the driver counts for the
 * process, and that is neither charged nor reported, is taken for memory that got past the limiter. */
void ledger_report(struct region *region, enum hetero_report kind, unsigned device, int64_t change);

/* Bytes held by the live processes of the grant, with the excess that root found (grant.h). */
uint64_t ledger_used(struct region *region, unsigned device);

#endif
