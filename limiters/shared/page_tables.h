/* Page tables, which a card needs for the memory that is mapped into its address space. */
#ifndef HETERO_SHARED_PAGE_TABLES_H
#define HETERO_SHARED_PAGE_TABLES_H

#include "types.h"

#include <stdbool.h>
#include <stdint.h>

/* A context was made: charge page tables of host memory, which is mapped on its device, too. False: they do not fit. */
bool tables_enter(int device);

/* The number of page tables that a sparse array of this shape has before anything is mapped into it. Charge, or give
 * back, so many tables of a device; false: they do not fit. */
uint64_t tables_of_sparse(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels);
bool add_tables(int device, uint64_t table_count);
void remove_tables(int device, uint64_t table_count);

void tables_prepare(void);
void tables_after_fork(void);

#endif
