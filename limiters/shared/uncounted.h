/* Uncounted memory: device memory of this process of which no call told the size. It is the driver's figure for the
 * process (NVML) less the memory of its contexts, its charged memory and its code.
 *
 * NVML's figure for a process is exact on the hardware measured (an NVIDIA H100, driver 580.159.04, 2026-11-23): it
 * grows with each call by what the card allocates, and takes 26 us to read. Uncounted memory is charged after calls
 * that can have allocated it: streams, modules. Without NVML, or if it never listed this process, streams and rows of
 * arrays are charged by the largest sizes that are known of an NVIDIA card, and the rest is not.
 */
#ifndef HETERO_SHARED_UNCOUNTED_H
#define HETERO_SHARED_UNCOUNTED_H

#include "types.h"

#include <stdbool.h>
#include <stdint.h>

/* Measures what a call adds to the uncounted bytes, such as the making of a context. One thread measures at a time:
 * each context_begins() is followed by context_made() or context_grew(). */
struct driver_baseline {
    int device;
    bool is_counted;      /* the device's memory is charged */
    bool is_known;        /* before_bytes was measured */
    int64_t before_bytes; /* the driver's figure less the charges, before the call */
};
struct driver_baseline context_begins(int device);
void context_made(const struct driver_baseline *baseline, context_t context);

/* In place of context_made(), for memory that is charged: set `*bytes` to what the call took, if that is known. */
void context_grew(const struct driver_baseline *baseline, uint64_t *bytes);

/* A context ended. */
void context_over(context_t context);

/* An image is loaded whose code may take the bytes on the device. */
void code_loaded(uint64_t bytes);

/* The bytes of stacks that a context takes with the first image whose kernels call malloc or vprintf. They are charged
 * before the load, and are part of the driver's figure afterwards. */
uint64_t stack_bytes_of_calls(int device, bool calls_malloc, bool calls_printf);

/* An image was unloaded, or its load failed. */
void code_refused(uint64_t bytes);

/* Charge uncounted memory, or give back what is no longer used. False: it grew, and the limit is exceeded. */
bool uncounted_settle(int device);

/* Whether what no call tells is charged by the largest sizes that are known: the driver never had a figure for this
 * process, and the sizes of such a device are known, as its node says what a context takes. */
bool largest_sizes_are_charged(int device);

/* Whether `bytes` of uncounted memory fit: into the limit, or into the part of contexts and code that is not used.
 * Where the largest sizes are charged, these bytes are, until the device has no context. */
bool uncounted_fits(int device, uint64_t bytes);

/* The same as uncounted_settle(), but at most once in 10 ms. */
bool uncounted_check_rarely(int device);

/* Add to the charged bytes that NVML's figure does not have, because other processes hold them, or pools of managed
 * memory. */
void unseen_add(int device, int64_t bytes);

/* All charged bytes that the figure does not have. */
int64_t unseen_bytes(int device);

/* Set the function that returns the charged bytes that the figure may not have (early.h). */
void set_hidden_bytes(uint64_t (*function)(int device));

void uncounted_after_fork(void);

#endif
