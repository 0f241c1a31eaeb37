/* Memory that more than one process has. */
#ifndef HETERO_SHARED_BORROWED_H
#define HETERO_SHARED_BORROWED_H

#include "types.h"

#include "../core/table.h"

#include <stdbool.h>
#include <stdint.h>

/* What is used of a card, and of that by this process, asked before the driver is told to let go of `bytes` that others
 * may have, too: did the card get them back? The driver counts them for nobody, or for another: then the process loses
 * more than the card gets. What else the process frees in that moment is in both, and what other processes of the grant
 * free is in what they have given back. Who takes as much in that moment hides that they came back: then they stay
 * charged, which is never too little. Not told apart is what another grant frees in that moment.
 */
struct card_use {
    bool is_known, is_process_listed; /* listed: the driver says what the process has */
    uint64_t card_bytes;
    int64_t process_bytes; /* with what is charged and not in its figure */
    uint64_t own_returned_bytes,
        others_returned_bytes; /* what this process and the grant's others have given back so far */
};
struct card_use card_use(int device);
bool card_got_back(int device, struct card_use use_before, uint64_t bytes);

/* Say in the region that others may have so many more of this process's bytes open (fewer, where negative); that it has
 * memory of others open once more, or once less, on whatever device. While it has, what others shared stays charged to
 * the grant when they end. */
void report_shared(int device, int64_t bytes);
void report_opened(int change);

/* A pool of another process's, or an address in one, is given up. */
void imported_freed(const struct entry *entry);

/* Take out what was open in a context that ended: how often. */
int take_opened_count(context_t context);

/* Take out a pool of another process's, or an address in one, by its name. It lives until the last of them is gone. */
bool take_imported(uint64_t key, struct entry *entry);

/* What is held by pointer and lies at an address: of a piece, one in the same block. False: nothing. */
bool allocation_at(pointer_t address, struct entry *allocation);

/* A pointer's memory may be opened elsewhere: it is given back like a block that was exported. Said before it may be;
 * refused where there is no room for the block of its context that it lies in. */
result_t note_shared(const struct entry *allocation);

/* The driver answered. `news`: it was not shared before. Said once more where it is: another thread's call for the same
 * pointer may have failed meanwhile. */
result_t settle_share(result_t answer, const struct entry *allocation, bool is_first_share);

/* Whether an entry is of such a pointer. Then it was freed: `before` is what was used of the card. */
bool is_shared(const struct entry *allocation);
void shared_freed(const struct entry *allocation, struct card_use use_before);

/* Around the end of a context that may have such memory: all of it, which is charged once more before the rest of the
 * context is given back. After that it stays charged unless the card has all of it again. */
struct card_use use_before_context(context_t context);
struct entry charge_shared_again(context_t context);
void settle_shared_context(const struct entry *total, struct card_use use_before);

/* What a process held and others have. It stays charged until the process ends. */
void leave_charged(int device, uint64_t bytes);

#endif
