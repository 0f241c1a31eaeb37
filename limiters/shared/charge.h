/* Memory is charged before the driver is asked for it, and given back when it is freed. */
#ifndef HETERO_SHARED_CHARGE_H
#define HETERO_SHARED_CHARGE_H

#include "types.h"
#include "counted.h"
#include "held.h"

/* Charge `bytes` to a device before the driver allocates them. The result is success, out of memory or not permitted.
 * 0 bytes: only check whether anything may be charged. Memory is reclaimed if necessary. */
result_t charge(int device, uint64_t bytes);

/* Charge `bytes` if they fit without reclaim. False: they do not fit or may not be charged. Nothing is charged then,
 * and no refusal is counted. */
bool charge_if_free(int device, uint64_t bytes);

/* The same as charge(), without reclaim. */
result_t charge_without_reclaim(int device, uint64_t bytes);

/* Whether `bytes` would fit now. Nothing is charged, and no refusal is counted. */
bool charge_fits(int device, uint64_t bytes);

/* Whether the charged bytes are within the limit. */
bool is_within_limit(int device);

/* The bytes of the grant that nobody holds; and its limit. Of a device that is not in the grant both are 0. */
uint64_t grant_left_bytes(int device, uint64_t *limit_bytes);

/* Charge bytes that the process holds already, also beyond the limit. False: the limit is exceeded. */
bool charge_unconditionally(int device, uint64_t bytes);

/* Put an entry into the table. One of the same name is replaced, and its charge given back. */
void keep_entry(const struct entry *entry);

/* After the driver's answer: keep the charge under (kind, key) if it succeeded, or give the charge back. */
result_t settle(result_t answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link);
result_t settle_pointer(result_t answer, const pointer_t *pointer, int device, uint64_t bytes, void *link);

/* The body of a call that frees `key`. Its entry is taken out before the driver is called, because the driver may reuse
 * the name at once. If the driver fails, the entry is put back. */
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

/* Give back the charge of an entry that was taken out of the table, by the function that was set for its kind. Kinds
 * from HELD_EXEC on have none. */
void give_back(const struct entry *entry);
void set_refund_function(uint32_t kind, void (*refund_function)(const struct entry *));
void give_back_bytes(const struct entry *entry);

/* Get freed memory back that the driver keeps, or that waits for a stream, until `bytes` fit, by the function that was
 * set (reclaim.h). */
void reclaim(int device, uint64_t bytes);
void set_reclaimer(void (*function)(int device, uint64_t bytes));

/* Free a pointer, at once or in the order of a stream (memory.c). */
result_t release(result_t (*real)(pointer_t), pointer_t pointer);
result_t release_async(result_t (*real)(pointer_t, stream_t), stream_t null_stream, pointer_t pointer, stream_t stream);

/* Give back the charges of all entries that this context owns. */
void refund_context(context_t context);

#endif
