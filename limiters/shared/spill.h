/* Memory that does not fit the card, and that the grant lets lie in host memory (HETERO_FLAG_SPILL). */
#ifndef HETERO_SHARED_SPILL_H
#define HETERO_SHARED_SPILL_H

#include "types.h"

#include "../core/table.h"

#include <stdbool.h>

/* Whether an allocation is to be spilled to host memory after this answer of the driver. */
bool spills(result_t answer, int device);

/* Allocate managed memory, which may exceed the card, in place of `bytes` of device memory that the driver refused and
 * for which `charged_bytes` are charged. */
result_t settle_spill(pointer_t *pointer, int device, uint64_t bytes, uint64_t charged_bytes);

/* The same for bytes that are not charged yet. */
result_t allocate_spilled(pointer_t *pointer, int device, uint64_t bytes);

/* Whether an entry is of spilled memory. */
bool is_spilled(const struct entry *entry);

#endif
