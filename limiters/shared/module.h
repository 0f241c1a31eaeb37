/* Modules end with their context, too. */
#ifndef HETERO_SHARED_MODULE_H
#define HETERO_SHARED_MODULE_H

#include "../core/table.h"

/* What is charged for one is given back, and its code no longer expected. */
void module_gone(const struct entry *entry);

#endif
