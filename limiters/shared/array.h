/* Arrays: memory without an address. */
#ifndef HETERO_SHARED_ARRAY_H
#define HETERO_SHARED_ARRAY_H

#include "charge.h"
#include "device.h"
#include "linear.h"
#include "page_tables.h"
#include "uncounted.h"

#include "../core/table.h"

/* Charge for an array of so many bytes. After the driver's answer: keep the charge and the number of page tables, or
 * give both back. Arrays of up to ARRAYS_SHARE_UP_TO bytes (types.h) share blocks (measured as in blocks.h: fifty of
 * 1 MiB took 50 MiB, and twenty of 1.4 MB took 40). */
result_t charge_array(int device, uint64_t bytes);
result_t settle_array(result_t answer, uint64_t key, int device, uint64_t bytes, uint64_t table_count);

/* The body of a call that makes an array of `array_bytes_` bytes. A sparse one has `tables` page tables from the start.
 */
#define CREATE_ARRAY(array_bytes_, tables, undo, call)                                                                 \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        uint64_t bytes = array_bytes_, table_count = tables;                                                           \
        result_t charge_result = charge_array(device, bytes);                                                          \
        if (charge_result == RESULT_OK && !add_tables(device, table_count))                                            \
            charge_result = ERROR(OUT_OF_MEMORY); /* a sparse array has no bytes of its own to give back */            \
        if (charge_result != RESULT_OK)                                                                                \
            return charge_result;                                                                                      \
        result_t answer = call;                                                                                        \
        uint64_t key = answer == RESULT_OK ? (uint64_t)(uintptr_t)*array : 0;                                          \
        answer = settle_array(answer, key, device, bytes, table_count);                                                \
        if (answer != RESULT_OK || uncounted_settle(device))                                                           \
            return answer;                                                                                             \
        undo; /* small arrays of many sizes waste blocks, and short rows take more than their elements */              \
        return ERROR(OUT_OF_MEMORY);                                                                                   \
    } while (0)

/* An array was freed: give back its charge. */
void array_freed(const struct entry *entry);

#endif
