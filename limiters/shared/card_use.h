/* What a card has in use, by which it is seen whether memory that others may have open is back. */
#ifndef HETERO_SHARED_CARD_USE_H
#define HETERO_SHARED_CARD_USE_H

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

/* Leave bytes that other processes have open charged until this process ends. */
void leave_charged(int device, uint64_t bytes);

#endif
