/* Memory that more than one process has. */
#ifndef HETERO_CUDA_BORROWED_H
#define HETERO_CUDA_BORROWED_H

#include "../core/table.h"

#include <stdbool.h>
#include <stdint.h>

/* What is used of a card, asked before and after the driver is told to let go of `bytes` that others may have, too: did
 * they come back? The driver counts them for nobody, or for another. A co-tenant that takes as much in that moment
 * hides that they did: then they stay charged, which is never too little. */
uint64_t card_used(int device);
bool card_got_back(int device, uint64_t before, uint64_t bytes);

/* Say in the region that others may have so many more of this process's bytes open (fewer, where negative); that it has
 * memory of others open once more, or once less, on whatever device. While it has, what others shared stays charged to
 * the grant when they end. */
void say_shared(int device, int64_t bytes);
void say_opened(int change);

/* What was open in a context ended with it. */
void opened_over(const struct entry *entry);

/* A pointer's memory may be opened elsewhere: it is given back like a block that was exported (memory.c). */
void pointer_shared(const struct entry *held);

/* What a process held and others have. It stays charged until the process ends. */
void stays_charged(int device, uint64_t bytes);

#endif
