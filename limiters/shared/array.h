/* Arrays: memory without an address. */
#ifndef HETERO_SHARED_ARRAY_H
#define HETERO_SHARED_ARRAY_H

#include "charge.h"
#include "device.h"
#include "linear.h"
#include "page_tables.h"
#include "uncounted.h"

#include "../core/table.h"

/* Charge for an array that takes so much; the driver answered, and it has so many page tables. Arrays of up to
 * ARRAYS_SHARE_UP_TO bytes (types.h) share blocks (measured as in blocks.h: fifty of 1 MiB took 50 MiB, and twenty
 * of 1.4 MB took 40). */
result_t charge_array(int device, uint64_t bytes);
result_t settle_array(result_t answer, uint64_t key, int device, uint64_t bytes, uint64_t tables);

/* The body of a call that makes an array, which has page tables by itself if it is sparse. */
#define CREATE_ARRAY(takes, tables, undo, call)                                                                        \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        uint64_t bytes = takes, sparse = tables;                                                                       \
        result_t refused = charge_array(device, bytes);                                                                \
        if (refused == RESULT_OK && !tables_more(device, sparse))                                                      \
            refused = ERROR(OUT_OF_MEMORY); /* and there is nothing else that was charged */                           \
        if (refused != RESULT_OK)                                                                                      \
            return refused;                                                                                            \
        result_t answer = call;                                                                                        \
        uint64_t key = answer == RESULT_OK ? (uint64_t)(uintptr_t)*array : 0;                                          \
        answer = settle_array(answer, key, device, bytes, sparse);                                                     \
        if (answer != RESULT_OK || uncounted_settle(device))                                                           \
            return answer;                                                                                             \
        undo; /* small ones of many sizes waste blocks, and short rows take more than their elements */                \
        return ERROR(OUT_OF_MEMORY);                                                                                   \
    } while (0)

/* Give back what is charged for an array that is gone. */
void array_gone(const struct entry *entry);

#endif
