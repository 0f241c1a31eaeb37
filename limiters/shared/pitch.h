/* Memory with a pitch: rows start at multiples of PITCH_STEP bytes (types.h), as far as was measured. If the driver
 * answers a larger pitch, that is charged. */
#ifndef HETERO_SHARED_PITCH_H
#define HETERO_SHARED_PITCH_H

#include "types.h"

#include "blocks.h"
#include "charge.h"
#include "device.h"
#include "spill.h"

#include <stddef.h>
#include <stdint.h>

/* The bytes that `rows` rows of `width_bytes` in each of `slices` slices are expected to take; UINT64_MAX: too many. */
uint64_t pitched_bytes(size_t width_bytes, size_t rows, size_t slices);

/* The driver placed them: `charged_bytes` are charged, and `bytes` are what they take. */
result_t settle_pitched(pointer_t *pointer, int device, uint64_t charged_bytes, uint64_t bytes);

/* The body of a call that allocates it: it takes `bytes`. If it spills to the host, `row_bytes` is set to its pitch. */
#define ALLOCATE_PITCHED(width_bytes, rows, slices, pointer, row_bytes, bytes, call)                                   \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        uint64_t expected_bytes = pitched_bytes(width_bytes, rows, slices);                                            \
        uint64_t block_bytes = block_bytes_of(expected_bytes);                                                         \
        result_t answer = charge(device, block_bytes);                                                                 \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = call;                                                                                                 \
        if (answer == RESULT_OK)                                                                                       \
            return settle_pitched(pointer, device, block_bytes, bytes);                                                \
        if (!spills(answer, device)) {                                                                                 \
            refund(device, counted(device) ? block_bytes : 0);                                                         \
            return answer;                                                                                             \
        }                                                                                                              \
        row_bytes = pitched_bytes(width_bytes, 1, 1);                                                                  \
        return block_bytes == 0 ? allocate_spilled(pointer, device, expected_bytes)                                    \
                                : settle_spill(pointer, device, expected_bytes, block_bytes);                          \
    } while (0)

#endif
