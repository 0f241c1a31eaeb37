/* Memory is charged before the driver is asked for it, and given back when it is freed. */
#ifndef HETERO_CUDA_CHARGE_H
#define HETERO_CUDA_CHARGE_H

#include "abi.h"
#include "counted.h"
#include "held.h"

/* Charge `bytes` to a device before the driver is asked: CUDA_SUCCESS, out of memory, or not permitted. 0 only tells
 * whether anything may be charged at all. */
CUresult charge(int device, uint64_t bytes);

/* The same, without having room made first. */
CUresult charge_now(int device, uint64_t bytes);

/* Whether `bytes` would fit now; nothing is charged and nothing is counted as refused. */
bool charge_fits(int device, uint64_t bytes);

/* Whether what is charged is within the limit. */
bool charge_within(int device);

/* Charge what is held already, whether it fits or not. False: it does not. */
bool charge_held(int device, uint64_t bytes);

/* The driver answered: keep the charge under (kind, key), or give it back. */
CUresult settle(CUresult answer, uint32_t kind, uint64_t key, int device, uint64_t bytes, void *link);
CUresult settle_pointer(CUresult answer, const CUdeviceptr *pointer, int device, uint64_t bytes, void *link);

/* Free `key`: forgotten before the driver is asked, for it may hand the name out again at once; remembered again if it
 * refuses. */
#define FREE(kind, key, call)                                                                                          \
    do {                                                                                                               \
        struct entry entry, previous;                                                                                  \
        bool ours = table_take(kind, (uint64_t)(uintptr_t)(key), &entry);                                              \
        CUresult answer = call;                                                                                        \
        if (ours && answer == CUDA_SUCCESS)                                                                            \
            give_back(&entry);                                                                                         \
        else if (ours)                                                                                                 \
            table_put(&entry, &previous);                                                                              \
        return answer;                                                                                                 \
    } while (0)

/* Give back what is charged for an entry that is out of the table: as said for its kind, below HELD_EXEC; nothing where
 * nothing was said. */
void give_back(const struct entry *entry);
void give_back_by(uint32_t kind, void (*give)(const struct entry *));
void give_back_bytes(const struct entry *entry);

/* Get back what was freed and is kept or not back yet, until `bytes` fit: as said once (room.h). */
void more_room(int device, uint64_t bytes);
void more_room_by(void (*make)(int device, uint64_t bytes));

/* Whether this answer of the driver means that the host is to hold what was asked of the device. */
bool spills(CUresult answer, int device);

/* Managed memory, which may exceed the card, for `bytes` that the driver refused and for which `charged` are charged.
 */
CUresult settle_spill(CUdeviceptr *pointer, int device, uint64_t bytes, uint64_t charged);

/* The same for bytes that are not charged yet. */
CUresult allocate_spilled(CUdeviceptr *pointer, int device, uint64_t bytes);

/* Whether this is such memory. */
bool is_spilled(const struct entry *entry);

/* Give back everything that ended with this context. */
void refund_context(CUcontext context);

#endif
