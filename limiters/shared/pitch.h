/* Memory with a pitch: rows start at multiples of PITCH_STEP (types.h), as far as was seen; a driver that answers more
 * is charged what it answered. */
#ifndef HETERO_SHARED_PITCH_H
#define HETERO_SHARED_PITCH_H

#include "types.h"

#include "blocks.h"
#include "charge.h"
#include "device.h"

#include <stddef.h>
#include <stdint.h>

/* What so many bytes in so many rows are expected to take; UINT64_MAX: more than can be said. */
uint64_t pitched(size_t width, size_t height, size_t depth);

/* The driver placed them: `charged` are charged, and `bytes` is what they take. */
result_t settle_pitched(pointer_t *pointer, int device, uint64_t charged, uint64_t bytes);

/* The body of a call that allocates it: at a pointer, `row` is set where the host holds it, `bytes` is what it takes.
 */
#define ALLOCATE_PITCHED(width, height, depth, pointer, row, bytes, call)                                              \
    do {                                                                                                               \
        int device = device_current();                                                                                 \
        uint64_t expected = pitched(width, height, depth), held = blocks_for(expected);                                \
        result_t answer = charge(device, held);                                                                        \
        if (answer != RESULT_OK)                                                                                       \
            return answer;                                                                                             \
        answer = call;                                                                                                 \
        if (answer == RESULT_OK)                                                                                       \
            return settle_pitched(pointer, device, held, bytes);                                                       \
        if (!spills(answer, device)) {                                                                                 \
            refund(device, counted(device) ? held : 0);                                                                \
            return answer;                                                                                             \
        }                                                                                                              \
        row = pitched(width, 1, 1);                                                                                    \
        return held == 0 ? allocate_spilled(pointer, device, expected)                                                 \
                         : settle_spill(pointer, device, expected, held);                                              \
    } while (0)

#endif
