/* Memory that more than one process has open. */
#ifndef HETERO_SHARED_BORROWED_H
#define HETERO_SHARED_BORROWED_H

#include "types.h"
#include "card_use.h"

#include "../core/table.h"

#include <stdbool.h>
#include <stdint.h>

/* An imported pool, or an imported address in a pool, was freed. */
void imported_freed(const struct entry *entry);

/* Take out all openings of foreign memory in a context that ended. Returns how many there were. */
int take_opened_count(context_t context);

/* Take out an imported pool, or an imported address in a pool. The memory lives until the last of them is freed. */
bool take_imported(uint64_t key, struct entry *entry);

/* The allocation at an address; for a sub-allocation, one in the same block. False: there is none. */
bool allocation_at(pointer_t address, struct entry *allocation);

/* Note that an allocation may be opened by other processes, before the driver makes its handle. Out of memory: it lies
 * in its context's block, and charging that block does not fit. */
result_t note_shared(const struct entry *allocation);

/* After the driver's answer. `is_first_share`: the allocation was not shared before the call. On success it is noted
 * once more, because another thread's failed call for the same pointer may have removed the note meanwhile. */
result_t settle_share(result_t answer, const struct entry *allocation, bool is_first_share);

/* Whether an allocation is shared; and after a shared one was freed, with the card's use before that. */
bool is_shared(const struct entry *allocation);
void shared_freed(const struct entry *allocation, struct card_use use_before);

/* Around the end of a context that may have shared memory. The sum of that memory is charged once more before the
 * context's charges are given back. Afterwards it stays charged unless the card has all of it back. */
struct card_use use_before_context(context_t context);
struct entry charge_shared_again(context_t context);
void settle_shared_context(const struct entry *total, struct card_use use_before);

#endif
