/* What a governor's launchers (gate.c) and its thread (governor.c) share: who may be inside the gate, and when. */
#ifndef HETERO_GATE_H
#define HETERO_GATE_H

#include "governor.h"

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

/* Ready: closed, but launchers wait awake, because it is about to be open. */
enum { GATE_CLOSED = 0, GATE_OPEN = 1, GATE_READY = 2 };

/* Who asks for the card's power: the governor's thread itself, where no other could be started; a watcher, which rests,
 * is to ask, or has asked; or nobody, because the driver has never told it or the process exits. */
enum { UNWATCHED = 0, WATCHER_RESTS, WATCHER_ASKS, WATCHER_ASKED, UNTOLD };

/* Of `traffic`, the launchers between enter and leave. */
#define GATE_INSIDE UINT64_C(0xffffffff)

/* A launcher at the gate looks at its terms this often: they may have been lifted. */
#define GATE_LOOK_NS (50 * MS)

extern atomic_bool governors_retired; /* the process is exiting: set once, never cleared */

/* The thread's body, which the first launcher at a closed gate starts. */
void *governor_work(void *governor);

/* The lock around the engine. False once the process exits: the driver may be gone. */
bool gate_lock(struct governor *governor);
void gate_unlock(struct governor *governor);

/* Wait while the word has this value, a while at most; and wake everybody who waits on it. */
void gate_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
void gate_wake(_Atomic uint32_t *word);

/* Whether the device has passed everything that was launched. */
bool gate_settled(struct governor *governor);

/* Launches let in since the start; it wraps around. */
static inline uint32_t gate_launches(struct governor *governor)
{
    return (uint32_t)(atomic_load_explicit(&governor->traffic, memory_order_relaxed) >> 32);
}

#endif
