/* The rack's Ascend cards as programs share them: time and memory (engine.h), for the driver and for DCMI alike.
 *
 * Keys of a [device] besides those of management_fake.h: context, slice, switch and bandwidth (docs/racks.md). Nobody
 * measured the last three on an Ascend card: they are NVIDIA's (nvidia.c) unless the rack says otherwise.
 */
#ifndef HETERO_FAKE_ASCEND_H
#define HETERO_FAKE_ASCEND_H

#include "engine.h"
#include "management_fake.h"

/* Of the cards that are open (fake_open). The engine's number of a card is its position. NULL: with a message. */
struct engine *ascend_engine(void);
void ascend_forget(void); /* in a forked child */

uint64_t ascend_context_bytes(const struct fake_card *card); /* what the driver takes for each process */
uint64_t ascend_bytes_per_s(const struct fake_card *card);   /* of the card's memory */

/* The five words that name a card's die. */
void ascend_die(const struct fake_card *card, unsigned die[5]);
bool ascend_has_hbm(const struct fake_card *card); /* else DDR */

/* What a kernel takes, as [kernel NAME] says, with the first four bytes of its arguments, if there are any. A kernel
 * that the rack does not name takes 2 us. */
uint64_t ascend_kernel_ns(const char *name, const void *arguments);

#endif
