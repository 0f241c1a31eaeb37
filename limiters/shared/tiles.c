/* Sparse arrays, into which tiles of VMM blocks are mapped (virtual.h). */
#include "arguments.h"
#include "bodies.h"
#include "held.h"
#include "launch.h"
#include "virtual.h"

#include "../core/fault.h"

/* Note that an array has tiles of a block. All its tiles of one block are one reference, which ends with the array,
 * because tiles are unmapped in the order of a stream. The key is a hash of both; pairs with equal hashes get
 * consecutive keys. */
static void remember_tiles(void *array, struct vmm_block *block)
{
    struct entry existing,
        entry = {.key = (uintptr_t)array ^ (uintptr_t)block, .kind = HELD_TILES, .owner = array, .link = block};
    for (; table_get(HELD_TILES, entry.key, &existing); entry.key++)
        if ((existing.owner == array && existing.link == block) || FAULT(tiles_by_key_alone)) {
            drop_reference(block);
            return;
        }
    table_put(&entry, &existing); /* an entry that another thread has put there stays charged */
}

static void remember_all(const TYPE(arrayMapInfo) *tiles, unsigned tile_count)
{
    for (unsigned index = 0; index < tile_count; index++) {
        struct vmm_block *block = tiles[index].memOperationType == VALUE(MEM_OPERATION_TYPE_MAP) &&
                                          !FAULT(tiles_hold_no_block)
                                      ? block_of_handle(tiles[index].memHandle.memHandle)
                                      : NULL;
        if (block != NULL)
            remember_tiles(tiles[index].resource.array, block);
    }
}

result_t map_tiles(result_t (*real)(TYPE(arrayMapInfo) *, unsigned, stream_t), stream_t null_stream,
                   TYPE(arrayMapInfo) *tiles, unsigned tile_count, stream_t stream)
{
    struct launch_ticket ticket;
    TYPE(arrayMapInfo) *copy = copy_arguments(tiles, tiles == NULL ? 0 : tile_count * sizeof *tiles);
    if (copy == NULL && tiles != NULL && tile_count > 0)
        return ERROR(OUT_OF_MEMORY);
    result_t answer = launch_enter(&ticket, stream == NULL ? null_stream : stream);
    if (answer == RESULT_OK) {
        remember_all(copy, copy == NULL ? 0 : tile_count);
        FAULT_PAUSE(tiles_read_twice);
        answer = real(FAULT_VALUE(tiles_read_twice, copy, tiles), tile_count, stream);
        launch_leave(&ticket, answer);
    }
    free(copy);
    return answer;
}
