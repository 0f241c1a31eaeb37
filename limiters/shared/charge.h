/* Memory is charged before the driver is asked for it, and given back when it is freed. */
#ifndef HETERO_SHARED_CHARGE_H
#define HETERO_SHARED_CHARGE_H

#include "types.h"
#include "counted.h"
#include "held.h"

/* Charge `bytes` to a device before the driver is asked: success, out of memory, or not permitted. 0 only tells
 * whether anything may be charged at all. */
result_t charge(int device, uint64_t bytes);

/* Charge what fits now. False, and nothing is charged or counted as refused: it does not, or may not be charged. */
bool charge_if_free(int device, uint64_t bytes);

/* Charge without having room made first. */
result_t charge_without_reclaim(int device, uint64_t bytes);

/* Whether `bytes` would fit now; nothing is charged and nothing is counted as refused. */
bool charge_fits(int device, uint64_t bytes);

/* Whether what is charged is within the limit. */
bool is_within_limit(int device);

/* Charge what is held already, whether it fits or not. False: it does not. */
bool charge_unconditionally(int device, uint64_t bytes);

/* Remember what is charged. */
void keep_entry(const struct entry *entry);

/* The driver answered: keep the charge under (kind, key), or give it back. */
result_t settle(result_t answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link);
result_t settle_pointer(result_t answer, const pointer_t *pointer, int device, uint64_t bytes, void *link);

/* Free `key`: forgotten before the driver is asked, for it may hand the name out again at once; remembered again if it
 * refuses. */
#define FREE(kind, key, call)                                                                                          \
    do {                                                                                                               \
        struct entry entry, previous;                                                                                  \
        bool is_known = table_take(kind, (uint64_t)(uintptr_t)(key), &entry);                                          \
        result_t answer = call;                                                                                        \
        if (is_known && answer == RESULT_OK)                                                                           \
            give_back(&entry);                                                                                         \
        else if (is_known)                                                                                             \
            table_put(&entry, &previous);                                                                              \
        return answer;                                                                                                 \
    } while (0)

/* Give back what is charged for an entry that is out of the table: as said for its kind, below HELD_EXEC; nothing where
 * nothing was said. */
void give_back(const struct entry *entry);
void set_refund_function(uint32_t kind, void (*refund_function)(const struct entry *));
void give_back_bytes(const struct entry *entry);

/* Get back what was freed and is kept or not back yet, until `bytes` fit: as said once (reclaim.h). */
void reclaim(int device, uint64_t bytes);
void set_reclaimer(void (*function)(int device, uint64_t bytes));

/* Whether this answer of the driver means that the host is to hold what was asked of the device. */
bool spills(result_t answer, int device);

/* Managed memory, which may exceed the card, for `bytes` that the driver refused and for which `charged` are charged.
 */
result_t settle_spill(pointer_t *pointer, int device, uint64_t bytes, uint64_t charged_bytes);

/* The same for bytes that are not charged yet. */
result_t allocate_spilled(pointer_t *pointer, int device, uint64_t bytes);

/* Whether this is such memory. */
bool is_spilled(const struct entry *entry);

/* Free what may be held by pointer, at once or in the order of a stream (memory.c). */
result_t release(result_t (*real)(pointer_t), pointer_t pointer);
result_t release_async(result_t (*real)(pointer_t, stream_t), stream_t null_stream, pointer_t pointer, stream_t stream);

/* Give back everything that ended with this context. */
void refund_context(context_t context);

#endif
