/* Which of the grant's devices a call means: its number in the grant, DEVICE_FOREIGN or DEVICE_NONE. */
#ifndef HETERO_SHARED_DEVICE_H
#define HETERO_SHARED_DEVICE_H

#include "types.h"

#include "../core/tenant.h"

#include <stdbool.h>

int device_of(device_t ordinal);

/* The same, asked of the driver anew. */
int device_by_uuid(device_t ordinal);

int device_current(void);
int device_of_stream(stream_t stream);

/* The device that every call means; DEVICE_NONE where there are several. */
int sole_device(void);

/* The driver's number of one of the grant's devices that device_of() has met. */
device_t ordinal_of(int device);

/* The driver answered how much memory a device has: the program is told what the grant has of it (memory.c). */
result_t total_shown(result_t answer, size_t *bytes, device_t ordinal);

/* How many threads one of the grant's devices can hold at once. */
uint64_t threads_of(int device);

/* Whether every device that this process sees is one of the grant's. */
bool all_devices_granted(void);

context_t context_current(void);
context_t context_of_stream(stream_t stream);

/* Make calls of this thread mean a context, from here to leaving it with what was before. False: they cannot. */
bool enter_context(context_t context, context_t *previous);
void leave_context(context_t previous);

/* The context that what is allocated now ends with: the current one, or the primary one where that is a green one. */
context_t context_of_memory(void);
void context_is_green(context_t context, void *green_context, context_t primary_context);
void device_after_fork(void);
void ordinals_after_fork(void);

#endif
