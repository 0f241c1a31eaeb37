/* Finds the grant's device that a call means: its number in the grant, DEVICE_FOREIGN or DEVICE_NONE. An `ordinal` is
 * the driver's number of a device. */
#ifndef HETERO_SHARED_DEVICE_H
#define HETERO_SHARED_DEVICE_H

#include "types.h"

#include "../core/tenant.h"

#include <stdbool.h>

int device_of(device_t ordinal);

/* The same, by the UUID that the driver has for the ordinal. */
int device_by_uuid(device_t ordinal);

int device_current(void);
int device_of_stream(stream_t stream);

/* The device that every call means, if the process sees only one; otherwise DEVICE_NONE. */
int sole_device(void);

/* The ordinal of one of the grant's devices, for which device_of() returned it before. */
device_t ordinal_of(int device);

/* What the driver calls the model of one of the grant's devices. False: it does not tell. */
bool device_model(int device, char *name, size_t size_bytes);

/* Replace a device's memory size in the driver's answer by the grant's limit (memory.c). */
result_t total_shown(result_t answer, size_t *bytes, device_t ordinal);

/* How many threads a device can have resident at once. */
uint64_t threads_of(int device);

/* Whether every device that this process sees is one of the grant's. */
bool all_devices_granted(void);

context_t context_current(void);
context_t context_of_stream(stream_t stream);

/* Make a context current in this thread, until leave_context() is called with `previous`. False: it failed. */
bool enter_context(context_t context, context_t *previous);
void leave_context(context_t previous);

/* The context that owns memory allocated now: the current one, or its primary context if that is a green context. */
context_t context_of_memory(void);
void context_is_green(context_t context, void *green_context, context_t primary_context);
void device_after_fork(void);
void ordinals_after_fork(void);

#endif
