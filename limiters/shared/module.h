/* Charges of modules. */
#ifndef HETERO_SHARED_MODULE_H
#define HETERO_SHARED_MODULE_H

#include "../core/table.h"

/* A module was unloaded, or its context ended: give its charge back, and expect its code no longer. */
void module_unloaded(const struct entry *entry);

/* How much of `bytes`, which a lower runtime takes for the load that this thread is making, is charged with that load.
 * Each charged byte is returned once. */
uint64_t covered_by_load(uint64_t bytes);

#endif
