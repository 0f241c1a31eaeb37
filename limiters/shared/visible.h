/* The list by which a program says which devices its driver is to show it (CUDA_VISIBLE_DEVICES). */
#ifndef HETERO_SHARED_VISIBLE_H
#define HETERO_SHARED_VISIBLE_H

/* Numbers in the list mean the grant's devices, from 0 on, as in the management library. The driver reads them as its
 * own, so they are UUIDs while it does. Returns the program's list, for visible_restore(); NULL: nothing was changed.
 */
const char *visible_translate(void);
void visible_restore(const char *list);

#endif
