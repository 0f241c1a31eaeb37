/* Sparse arrays: tiles of blocks of physical memory are mapped into them (virtual.h). */
#include "bodies.h"
#include "held.h"
#include "launch.h"
#include "virtual.h"

/* The tiles that an array has of a block count as one reference, which ends with the array: tiles are unmapped in the
 * order of a stream. */
result_t map_tiles(result_t (*real)(TYPE(arrayMapInfo) *, unsigned, stream_t), stream_t none, TYPE(arrayMapInfo) *tiles,
                   unsigned count, stream_t stream)
{
    struct entry previous;
    struct launch_ticket ticket;
    result_t answer = launch_enter(&ticket, stream == NULL ? none : stream);
    if (answer != RESULT_OK)
        return answer;
    for (unsigned i = 0; tiles != NULL && i < count; i++) {
        struct block *block = tiles[i].memOperationType == VALUE(MEM_OPERATION_TYPE_MAP)
                                  ? block_held(tiles[i].memHandle.memHandle)
                                  : NULL;
        struct entry entry = {.key = (uintptr_t)tiles[i].resource.array ^ (uintptr_t)block,
                              .kind = HELD_TILES,
                              .owner = tiles[i].resource.array,
                              .link = block};
        if (block != NULL && (!table_put(&entry, &previous) || previous.kind != 0))
            block_dropped(previous.kind != 0 ? previous.link : NULL);
    }
    answer = real(tiles, count, stream);
    launch_leave(&ticket, answer);
    return answer;
}
