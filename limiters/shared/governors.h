/* The governors of this process: one for each device of the grant that is limited in core. */
#ifndef HETERO_SHARED_GOVERNORS_H
#define HETERO_SHARED_GOVERNORS_H

#include "../timeshare/governor.h"

/* The time sharing's calls of the driver (engine.c). */
extern const struct engine driver_engine;

/* By device of the grant; NULL until its first limited launch, then constant. */
extern _Atomic(struct governor *) governors[HETERO_MAX_DEVICES];

/* Open the files of a device's governor, before the program may lose the right to open them. False: it failed. */
bool governor_prepare(int device);

/* Make the governor of a device; NULL when it cannot be prepared. */
struct governor *governor_make(int device);

/* The governor of a device; NULL while it has none. */
static inline struct governor *governor_known(int device)
{
    return device < 0 ? NULL : atomic_load_explicit(&governors[device], memory_order_acquire);
}

/* The governor of a device of the grant, made on first use; NULL when that is impossible. */
static inline struct governor *governor_of(int device)
{
    struct governor *governor = governor_known(device);
    return __builtin_expect(governor != NULL, 1) ? governor : governor_make(device);
}

/* Around a call that may end a context, and before one that ends a stream: the gates of all devices are told (gate.h).
 * A context of NULL is none. */
void gates_before_context_ends(void *context);
void gates_after_context_ended(void *context, bool is_alive);
void gates_before_stream_ends(void *stream);

void governors_after_fork(void);

#endif
