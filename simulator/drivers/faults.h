/* The faults that a rack orders from a vendor's fake library:
 *
 *     [fault]
 *     call = dcmi_get_device_health   # a shell pattern: *_v2 is an older library
 *     device = 1                      # on this card alone; not said: on all, and on calls that name none
 *     vendor = ascend                 # needed only where two vendors' libraries share a name
 *     does = error -8008              # the code as the call returns it
 *          | hang 3 s                 # the answer comes, but late; plain hang: never
 *          | garbage                  # success, and noise in all that should have been filled in
 *          | missing                  # the library does not export it
 *          | vanish                   # the card is gone from the second such call on (vanish 3: from the third)
 */
#ifndef HETERO_FAULTS_H
#define HETERO_FAULTS_H

#include "management_state.h"

bool faults_sound(struct rack *rack); /* reports malformed faults; false: there were some */

bool faults_spare(const struct fake_card *card); /* the card has not vanished since it was handed out */

/* Whether the call ends here and returns *code. `out` is filled with noise if the fault says so. */
bool faults_answer(const char *call, const struct fake_card *card, void *out, uint64_t size, int *code);
#define FAULTS(card, out, size)                                                                                        \
    do {                                                                                                               \
        int code_;                                                                                                     \
        if (faults_answer(__func__, (card), (out), (size), &code_))                                                    \
            return code_;                                                                                              \
    } while (0)

#endif
