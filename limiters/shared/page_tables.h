/* Page tables, which a card has for what is mapped in its addresses. */
#ifndef HETERO_SHARED_PAGE_TABLES_H
#define HETERO_SHARED_PAGE_TABLES_H

#include "types.h"

#include <stdbool.h>
#include <stdint.h>

/* A context was made: memory of the host is mapped on its device, too. False: its page tables do not fit. */
bool tables_enter(int device);

/* How many a sparse array of this shape has, before anything is mapped into it; and so many more of a device, or fewer.
 * False: they do not fit. */
uint64_t tables_of_sparse(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels);
bool add_tables(int device, uint64_t table_count);
void remove_tables(int device, uint64_t table_count);

void tables_prepare(void);
void tables_after_fork(void);

#endif
