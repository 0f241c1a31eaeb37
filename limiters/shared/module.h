/* Modules end with their context, too. */
#ifndef HETERO_SHARED_MODULE_H
#define HETERO_SHARED_MODULE_H

#include "../core/table.h"

/* What is charged for one is given back, and its code no longer expected. */
void module_unloaded(const struct entry *entry);

/* So much of `bytes`, which a runtime below takes for the load that this thread is in, is charged with that load: each
 * byte once. */
uint64_t covered_by_load(uint64_t bytes);

#endif
