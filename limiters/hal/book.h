/* The book of memory, as the layers above ask it. */
#ifndef HETERO_HAL_BOOK_H
#define HETERO_HAL_BOOK_H

#include <stdbool.h>
#include <stdint.h>

/* The grant's device of a device that hal names; DEVICE_FOREIGN: none of it, or not known (device.c). */
int device_of_hal(uint32_t device);
void hal_devices_after_fork(void);

/* Ask the runtime for the ids of all devices that the process sees. Best while it is in no call: with locks that it
 * holds it may not be asked. */
void hal_devices_learn(void);

/* Before memory at an address is given to other processes by a name. False: it was noted before, or is not known. */
bool book_note_shared(const void *pointer);

/* A handle of physical memory may be retained: from now on a block is given back where the card is seen to have it
 * back, whatever was released. */
void book_note_retained(void);

/* The driver gave it no name. */
void book_forget_shared(const void *pointer);

#endif
