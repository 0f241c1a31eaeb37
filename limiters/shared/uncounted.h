/* Device memory of this process that no call told the size of: what the driver says that it holds, less what is known.
 *
 * NVML's figure for a process is exact on the hardware measured (an NVIDIA H100, driver 580.159.04, 2026-11-23): it
 * grows with each call by what the card gives, and takes 26 us to ask for. Known are the process's contexts, what is
 * charged, and code. What is beyond is charged when a call is looked at that can have taken it: streams, modules.
 * Where NVML is not there, or does not tell of this process, nothing is known to be beyond.
 */
#ifndef HETERO_SHARED_UNCOUNTED_H
#define HETERO_SHARED_UNCOUNTED_H

#include "types.h"

#include <stdbool.h>
#include <stdint.h>

/* Around the making of a context: what the process holds without it, and the context it got. One at a time. */
struct driver_baseline {
    int device;
    bool is_known;
    int64_t before_bytes;
};
struct driver_baseline context_begins(int device);
void context_made(const struct driver_baseline *baseline, context_t context);

/* The same of one that is charged: what it took, where that is known. */
void context_grew(const struct driver_baseline *baseline, uint64_t *bytes);

/* A context ended. */
void context_over(context_t context);

/* An image was loaded whose code may take so many bytes of the device. */
void code_loaded(uint64_t bytes);

/* What a context takes with the first image whose kernels call these: charged before it is loaded, and afterwards by
 * the figure. */
uint64_t stack_bytes_of_calls(int device, bool calls_malloc, bool calls_printf);

/* The driver did not load it after all. */
void code_refused(uint64_t bytes);

/* Charge what is beyond what is known, or give back what no longer is. False: there is more, and the limit is passed.
 */
bool uncounted_settle(int device);

/* Whether so much more that no call tells fits: into the limit, or into what contexts and code may take and do not.
 * True where that is not known. */
bool uncounted_fits(int device, uint64_t bytes);

/* The same as uncounted_settle(), where it was not looked at in the last 10 ms. */
bool uncounted_check_rarely(int device);

/* Bytes that are charged and that NVML's figure does not have, because others hold them, or pools of managed memory. */
void unseen_add(int device, int64_t bytes);

/* All that is charged and that it does not have. */
int64_t unseen_bytes(int device);

/* Who tells how much is charged that the figure may not have: said once (early.h). */
void set_hidden_bytes(uint64_t (*function)(int device));

void uncounted_after_fork(void);

#endif
