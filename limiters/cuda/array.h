/* Arrays: memory without an address. */
#ifndef HETERO_CUDA_ARRAY_H
#define HETERO_CUDA_ARRAY_H

#include "../core/table.h"

/* Give back what is charged for an array that is gone. */
void array_gone(const struct entry *entry);

#endif
