/* Memory that more than one process has open. */
#ifndef HETERO_SHARED_BORROWED_H
#define HETERO_SHARED_BORROWED_H

#include "types.h"

#include "../core/table.h"

#include <stdbool.h>
#include <stdint.h>

/* The memory in use on a card, and by this process, read before this process frees `bytes` that others may have open.
 * card_got_back() reads it again, to tell whether the card has the bytes back. If another process has them open, the
 * driver counts them for it or for nobody: this process then loses more than the card gets. Other memory that this
 * process frees meanwhile is in both figures. Memory that the grant's other processes free is in their returned bytes.
 * An allocation of another process meanwhile can hide that the bytes came back: they stay charged then, which is never
 * too little. Memory that another grant frees meanwhile is not told apart.
 */
struct card_use {
    bool is_known;          /* the fields below were read */
    bool is_process_listed; /* the driver has a figure for this process */
    uint64_t card_bytes;    /* in use on the card, by all processes */
    int64_t process_bytes;  /* the driver's figure, with charged bytes that it does not have */
    /* That this process and the grant's other processes have returned so far. */
    uint64_t own_returned_bytes, others_returned_bytes;
};
struct card_use card_use(int device);
bool card_got_back(int device, struct card_use use_before, uint64_t bytes);

/* Report in the region: other processes may have so many more of this process's bytes open (negative: fewer); this
 * process opened memory of others once more (-1: closed it), on any device. While it has such memory open, memory that
 * ended processes shared stays charged to the grant. */
void report_shared(int device, int64_t bytes);
void report_opened(int change);

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

/* Leave bytes that other processes have open charged until this process ends. */
void leave_charged(int device, uint64_t bytes);

#endif
