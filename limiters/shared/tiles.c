/* Sparse arrays: tiles of blocks of physical memory are mapped into them (virtual.h). */
#include "arguments.h"
#include "bodies.h"
#include "held.h"
#include "launch.h"
#include "virtual.h"

#include "../core/fault.h"

/* The tiles that an array has of a block count as one reference, which ends with the array: tiles are unmapped in the
 * order of a stream. The key is made of both, and of pairs that have the same one each has a key of its own beside it.
 */
static void remember_tiles(void *array, struct block *block)
{
    struct entry found,
        entry = {.key = (uintptr_t)array ^ (uintptr_t)block, .kind = HELD_TILES, .owner = array, .link = block};
    for (; table_get(HELD_TILES, entry.key, &found); entry.key++)
        if ((found.owner == array && found.link == block) || FAULT(tiles_by_key_alone)) {
            block_dropped(block);
            return;
        }
    table_put(&entry, &found); /* what another thread put there meanwhile stays charged */
}

static void remember_all(const TYPE(arrayMapInfo) *tiles, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct block *block = tiles[i].memOperationType == VALUE(MEM_OPERATION_TYPE_MAP) && !FAULT(tiles_hold_no_block)
                                  ? block_held(tiles[i].memHandle.memHandle)
                                  : NULL;
        if (block != NULL)
            remember_tiles(tiles[i].resource.array, block);
    }
}

result_t map_tiles(result_t (*real)(TYPE(arrayMapInfo) *, unsigned, stream_t), stream_t none, TYPE(arrayMapInfo) *tiles,
                   unsigned count, stream_t stream)
{
    struct launch_ticket ticket;
    TYPE(arrayMapInfo) *ours = as_they_are(tiles, tiles == NULL ? 0 : count * sizeof *tiles);
    if (ours == NULL && tiles != NULL && count > 0)
        return ERROR(OUT_OF_MEMORY);
    result_t answer = launch_enter(&ticket, stream == NULL ? none : stream);
    if (answer == RESULT_OK) {
        remember_all(ours, ours == NULL ? 0 : count);
        FAULT_PAUSE(tiles_read_twice);
        answer = real(FAULT_VALUE(tiles_read_twice, ours, tiles), count, stream);
        launch_leave(&ticket, answer);
    }
    free(ours);
    return answer;
}
